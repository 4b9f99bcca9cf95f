// Several ranks do what one does: the same bits in checkpoints, results and losses.
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "kernels/isa.h"
#include "session/rank_plan.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_run.h"
#include "tests/support/worse.h"
#include "train/crew.h"
#include "train/crew_messages.h"
#include "train/run_start.h"

namespace jackscrew {
namespace {

void expect_the_same_on_ranks(const TinyRun& tiny, const std::string& recipe) {
  const auto settings = [&](const std::string& output, const std::string& more) {
    return tiny.settings(
        "output_dir=" + tiny.path(output).string() + " eval_data=" + tiny.eval_data() +
        " max_steps=5 save_steps=3 eval_steps=3 report_samples=0 " + recipe + " " + more);
  };
  int runs = 0;
  const auto compare = [&](const std::string& arithmetic,
                           const std::vector<std::pair<int, std::string>>& arrangements) {
    const std::string one = fmt::format("one{}", ++runs);
    train_on_ranks(settings(one, arithmetic), 1);
    const auto want = outcome_of(tiny, one);
    for (const auto& [ranks, more] : arrangements) {
      const std::string many = fmt::format("many{}", ++runs);
      train_on_ranks(settings(many, arithmetic + " " + more), ranks);
      const auto got = outcome_of(tiny, many);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [name, bytes] : want) {
        EXPECT_TRUE(got.contains(name)) << name;
        EXPECT_TRUE(got.at(name) == bytes)
            << name << " with " << ranks << " ranks, " << arithmetic << " " << more;
      }
    }
  };
  compare("data_parallel=2", {{2, ""}, {2, "pipeline_stages=2"}, {4, "pipeline_stages=2"}});
  compare("data_parallel=4", {{2, ""}, {4, ""}});
  compare("data_parallel=1 gradient_accumulation_steps=3", {{2, "pipeline_stages=2"}});
}

TEST(Crew, AFailureIsToldWhole) {
  const auto told = [](const std::optional<Error>& failure) {
    MessageWriter out;
    put_failure(out, failure);
    MessageReader in(out.bytes());
    return get_failure(in);
  };
  EXPECT_FALSE(told(std::nullopt).has_value());
  const Error error(ErrorKind::data, "cannot read", "look at it");
  const std::optional<Error> same = told(error);
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->kind(), error.kind());
  EXPECT_STREQ(same->what(), error.what());
  EXPECT_EQ(same->hint(), error.hint());
}

TEST(Crew, AMessageHasFieldAfterField) {
  StepBatch batch{{MicroBatch(), MicroBatch()}, 3, 5, 7};
  batch.micro_batches[1] = {{1, 2}, {0, 1}, {2, -1}, {0, 2}, 1};
  MessageWriter out, expected;
  put(out, batch);
  expected.put(batch.targets).put(batch.tokens).put(batch.first_token).put(size_t{2});
  for (const MicroBatch& each : batch.micro_batches) {
    expected.put(each.ids).put(each.positions).put(each.targets);
    expected.put(each.cu_seqlens).put(each.target_count);
  }
  EXPECT_TRUE(std::ranges::equal(out.bytes(), expected.bytes()));
  const auto same = MessageReader(out.bytes()).get<StepBatch>();
  ASSERT_EQ(same.micro_batches.size(), 2u);
  EXPECT_EQ(same.first_token, 7);
  EXPECT_EQ(same.micro_batches[1].targets, batch.micro_batches[1].targets);
  EXPECT_EQ(same.micro_batches[1].target_count, 1);
  // A count that is not true takes no memory.
  const MessageWriter many = MessageWriter().put(size_t{1} << 60);
  const std::string error =
      error_of(ErrorKind::device, [&] { MessageReader(many.bytes()).get_vector<std::string>(); });
  EXPECT_EQ(message_of(error), "a message between ranks ends too early");
}

// Checkpoints of several have copies of masters, whose files get no second name.
TEST(Crew, OneRankAloneHoldsRoomForAllMasters) {
  const TinyRun tiny("crew_room");
  for (const int ranks : {1, 2}) {
    const fs::path output = tiny.path(fmt::format("out{}", ranks));
    fs::create_directories(output);
    const Recipe recipe = make_recipe(
        settings_of(tiny.settings("output_dir=" + output.string() +
                                  " method=rotary master=mmap active_params=50% data_parallel=2")));
    const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
    const auto count = [&] {
      int of_files = 0;
      for (const auto& entry : fs::recursive_directory_iterator(output)) {
        of_files += entry.is_regular_file() ? 1 : 0;
      }
      return of_files;
    };
    on_ranks(ranks, {}, [&](Transport* transport) {
      Crew crew(recipe, files, transport, recipe.to_yaml());
      ProgressStyle quiet;
      quiet.quiet = true;
      crew.load(crew.rehearse({}), quiet);
      const int before = count();
      EXPECT_GE(before, ranks);
      crew.reserve_master_files();
      EXPECT_EQ(count() > before, ranks == 1);
      dismiss(transport);
    });
  }
}

class SlowCrewTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SlowCrewTest, AnyNumberOfRanksDoesWhatOneDoes) {
  const std::string recipe = GetParam();
  if (recipe.find("product=bf16") != std::string::npos && detect_isa() < IsaLevel::v4_bf16) {
    GTEST_SKIP() << "this CPU has no bf16 products";
  }
  const TinyRun tiny("crew_" + std::to_string(std::hash<std::string>()(recipe) % 100000));
  expect_the_same_on_ranks(tiny, recipe);
}

TEST(SlowCrew, ABaseInGptqLiesInStages) {
  const TinyRun tiny("crew_gptq");
  tiny.must_train("base", "method=full max_steps=1");
  const Outcome rounded = run(fmt::format(
      "quantize model={} data={} output_dir={} sequence_len=64 group_size=32 bits=4 --quiet 2>&1",
      tiny.path("base").string(), tiny.data(), tiny.path("gptq").string()));
  ASSERT_EQ(rounded.exit_code, 0) << rounded.out;
  expect_the_same_on_ranks(tiny,
                           "method=lora model=" + tiny.path("gptq").string() + " init=pretrained");
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, SlowCrewTest,
    ::testing::Values("method=full", "method=full storage=bf16 product=bf16",
                      "method=lora lora_dropout=0.1", "method=lora storage=nf4 product=int8",
                      "method=lora storage=nf4 lora_init=pissa lora_rank=4",
                      "method=prompt prompt_tokens=3",
                      "method=rotary active_params=60% steps_per_rotation=2 storage=int8",
                      "method=rotary active_params=60% steps_per_rotation=2 storage=int8 "
                      "rotation_order=importance master=mmap rotation_parts=1,1",
                      "method=rotary active_params=60% steps_per_rotation=2 storage=int8 "
                      "master_dtype=bf16",
                      "method=galore projection_update_gap=2 galore_rank=8",
                      "method=qgalore projection_update_gap=3 galore_rank=8 update=after "
                      "max_grad_norm_of=model",
                      "method=full product=int4 int4_mode=paper int4_block=search "
                      "int4_cold_steps=2 learning_rate=1e-3"));

// Weights that are updated within backward are so in each stage. The norm is logged as their sum in
// another order.
TEST(SlowCrew, StagesUpdateWithinBackward) {
  const TinyRun tiny("crew_fused");
  for (const char* method : {"method=full", "method=qgalore galore_rank=8", "method=lora"}) {
    const auto settings = [&](const std::string& output, const std::string& more) {
      return tiny.settings("output_dir=" + tiny.path(output).string() +
                           " overwrite=true max_steps=5 save_steps=5 report_samples=0 update=fused "
                           "max_grad_norm_of=weight gradient_accumulation_steps=3 " +
                           std::string(method) + " " + more);
    };
    train_on_ranks(settings("one", ""), 1);
    train_on_ranks(settings("many", "pipeline_stages=2"), 2);
    const std::string result = fs::exists(tiny.path("one/model.safetensors"))
                                   ? "/model.safetensors"
                                   : "/adapter_model.safetensors";
    EXPECT_TRUE(tiny.text("one" + result) == tiny.text("many" + result)) << method;
    const std::string state = "/checkpoint-5/state.safetensors";
    EXPECT_TRUE(tiny.text("one" + state) == tiny.text("many" + state)) << method;
    EXPECT_EQ(tiny.losses("one"), tiny.losses("many")) << method;
    for (const std::string output : {"one", "many"}) fs::remove_all(tiny.path(output));
  }
}

// Stages may have nothing of what a learner is for, and take part all the same.
TEST(SlowCrew, StagesWithoutTargets) {
  const TinyRun tiny("crew_targets");
  for (const char* recipe :
       {"method=galore projection_update_gap=2 galore_rank=8 "
        "galore_target=.*layers.1.*_proj",
        "method=lora lora_init=pissa lora_rank=4 lora_target=.*layers.0.*_proj"}) {
    const auto settings = [&](const std::string& output, const std::string& more) {
      return tiny.settings("output_dir=" + tiny.path(output).string() +
                           " overwrite=true max_steps=4 report_samples=0 " + recipe + more);
    };
    train_on_ranks(settings("one", ""), 1);
    train_on_ranks(settings("many", " pipeline_stages=2"), 2);
    EXPECT_EQ(tiny.losses("one"), tiny.losses("many")) << recipe;
  }
}

// What stands beside the embedding is on the stage that has it.
TEST(SlowCrew, ASoftPromptGoesOnInStages) {
  const TinyRun tiny("crew_prompt");
  const auto settings = [&](const std::string& output, const std::string& more) {
    return tiny.settings("output_dir=" + tiny.path(output).string() +
                         " max_steps=3 report_samples=0 method=prompt prompt_tokens=3 "
                         "init=pretrained model=" +
                         tiny.path("base").string() + " " + more);
  };
  tiny.must_train("base", "method=full max_steps=1");
  train_on_ranks(settings("begun", ""), 1);
  const std::string more = "adapter=" + tiny.path("begun").string();
  train_on_ranks(settings("one", more), 1);
  train_on_ranks(settings("many", more + " pipeline_stages=2"), 2);
  EXPECT_EQ(tiny.losses("one"), tiny.losses("many"));
}

// What a rank waits for in steps is told as a share of their time; evaluations are no part of it.
TEST(SlowCrew, EvaluationsAreNoWaitsOfSteps) {
  const TinyRun tiny("crew_waits");
  train_on_ranks(
      tiny.settings("output_dir=" + tiny.path("out").string() + " eval_data=" + tiny.data() +
                    " method=full max_steps=1 report_samples=2 pipeline_stages=2"),
      2, {.latency = std::chrono::microseconds(5000)});
  double step_seconds = 0;
  for (const auto& event : tiny.events("out", "step")) {
    step_seconds += event["tokens"].get<double>() / event["tokens_per_second"].get<double>();
  }
  EXPECT_GT(step_seconds, 0.0);
  // The first rank's own waits lie within the time that it takes for steps.
  const auto ranks = tiny.events("out", "rank");
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_GT(ranks[0]["seconds_waited"].get<double>(), 0.0);
  EXPECT_LT(ranks[0]["seconds_waited"].get<double>(), step_seconds);
}

// An unbroken run is that of 4 ranks, 1 rank and 2 ranks one after the other.
TEST(SlowCrew, AnyNumberOfRanksGoesOn) {
  const TinyRun tiny("crew_resume");
  const auto settings = [&](const std::string& output, int steps, const std::string& more) {
    return tiny.settings(fmt::format(
        "output_dir={} method=rotary active_params=60% steps_per_rotation=2 storage=int8 "
        "data_parallel=2 save_steps=2 max_steps={} lr_scheduler_type=constant warmup_steps=0 "
        "report_samples=0 {}",
        tiny.path(output).string(), steps, more));
  };
  train_on_ranks(settings("whole", 6, ""), 1);
  train_on_ranks(settings("parts", 2, "pipeline_stages=2"), 4);
  // The lanes of a run stay, where nobody says how many.
  train_on_ranks(settings("parts", 4, "data_parallel=auto"), 1);
  train_on_ranks(settings("parts", 6, "data_parallel=auto pipeline_stages=2"), 2);
  for (const char* file : {"model.safetensors", "checkpoint-6/state.safetensors"}) {
    EXPECT_TRUE(tiny.text(std::string("whole/") + file) == tiny.text(std::string("parts/") + file))
        << file;
  }
}

// A run that left nothing to go on with leaves no lanes either.
TEST(Crew, LanesAreThoseOfWhatCanGoOn) {
  const TinyRun tiny("crew_lanes");
  fs::create_directories(tiny.path("out"));
  tiny.file("out/recipe.yaml", "data_parallel: 1\n");
  const auto lanes = [&](const std::string& more) {
    const std::string settings = "output_dir=" + tiny.path("out").string() + more;
    return with_lanes(make_recipe(settings_of(tiny.settings(settings))), 2).data_parallel;
  };
  EXPECT_EQ(lanes(""), 2);
  const std::string inherited = "2 copies of the model, over which 1 lane (data_parallel)";
  for (const char* left : {"checkpoint-2/checkpoint.json", "adapter_model.safetensors"}) {
    fs::create_directories(tiny.path("out") / left);
    const std::string error = error_of(ErrorKind::usage, [&] { lanes(""); });
    EXPECT_NE(error.find("recipe.yaml is of a run with 1 lane: "), std::string::npos) << error;
    EXPECT_NE(error.find(inherited), std::string::npos) << error;
    EXPECT_EQ(error.find("data_parallel="), std::string::npos) << error;
    EXPECT_EQ(lanes(" overwrite=true"), 2);
    // What is wrong whatever the lanes are has its own reason.
    EXPECT_EQ(error_of(ErrorKind::usage, [&] { lanes(" rank_device_memory=1GiB,1GiB,1GiB"); })
                  .find("rank_device_memory has 3 entries"),
              0u);
    fs::remove(tiny.path("out") / left);
  }
  // Of a checkpoint that is named: its own, wherever it is and whatever output_dir has.
  fs::create_directories(tiny.path("elsewhere/checkpoint-2"));
  tiny.file("elsewhere/checkpoint-2/recipe.yaml", "data_parallel: 4\n");
  const std::string resumed = " resume=" + tiny.path("elsewhere/checkpoint-2").string();
  EXPECT_EQ(lanes(resumed), 4);
  EXPECT_EQ(lanes(resumed + " overwrite=true"), 4);
}

// What a rank takes and sends is what the plan says of it.
TEST(SlowCrew, EveryRankTakesWhatIsPlanned) {
  const TinyRun tiny("crew_plan");
  for (const char* method : {"method=full", "method=lora",
                             "method=rotary storage=int8 active_params=60% steps_per_rotation=2",
                             "method=rotary storage=int8 active_params=60% steps_per_rotation=2 "
                             "rotation_parts=1,1",
                             "method=galore galore_rank=8 projection_update_gap=4"}) {
    const std::string settings =
        tiny.settings("output_dir=" + tiny.path("out").string() +
                      " overwrite=true max_steps=5 gradient_accumulation_steps=2 data_parallel=4 "
                      "pipeline_stages=2 report_samples=0 " +
                      std::string(method));
    const Recipe recipe = make_recipe(settings_of(settings));
    const ModelFiles files = open_model(recipe.model, "", recipe.tokenizer);
    const RanksPlan plan = plan_ranks(recipe, files, 4);
    train_on_ranks(settings, 4);
    const auto ranks = tiny.events("out", "rank");
    ASSERT_EQ(ranks.size(), 4u);
    for (const auto& rank : ranks) {
      const SessionPlan& planned = plan.ranks[rank["rank"].get<size_t>()];
      EXPECT_EQ(rank["device"]["peak"].get<int64_t>(), planned.ledger.peak) << method << rank;
      EXPECT_EQ(rank["host_memory"]["peak"].get<int64_t>(), planned.host.peak) << method << rank;
      // Others change what learns; the plan has the most of it.
      const auto sent = rank["sent_gradient"].get<int64_t>();
      EXPECT_LE(sent, 5 * planned.sent.gradient) << method << rank;
      if (method != std::string("method=full")) continue;
      EXPECT_EQ(sent, 5 * planned.sent.gradient) << rank;
    }
  }
}

// Where each stage has a part of what rotates, it needs room for its share of the active weights
// only, not for the case that all of them are its own.
TEST(SlowCrew, PartsKeepTheirShareOfWhatRotates) {
  const TinyRun tiny("crew_parts");
  const auto gradients = [&](const std::string& more) {
    const Recipe recipe = make_recipe(settings_of(tiny.settings(
        "method=rotary storage=int8 active_params=40% static=freeze pipeline_stages=2 " + more)));
    const RanksPlan plan = plan_ranks(recipe, open_model(recipe.model, "", recipe.tokenizer), 2);
    return plan.ranks[0].ledger.at_peak[static_cast<size_t>(Purpose::gradients)];
  };
  EXPECT_LE(2 * gradients("rotation_parts=1,1"), gradients(""));
}

// The windows in which GaLore finds its subspaces are open in all stages at a time, in none all:
// two stages take a half of the memory each, and little more.
TEST(SlowCrew, StagesShareTheWindowsOfGalore) {
  const ModelFiles files = open_model("llama-7b");
  const auto projections = [&](int ranks) {
    const Recipe recipe = make_recipe(
        settings_of(fmt::format("model=llama-7b init=random checkpoint_dtype=bf16 method=qgalore "
                                "galore_rank=1024 sequence_len=64 pipeline_stages={}",
                                ranks)));
    int64_t most = 0;
    for (const SessionPlan& rank : plan_ranks(recipe, files, ranks).ranks) {
      most = std::max(most, rank.ledger.at_peak[static_cast<size_t>(Purpose::projections)]);
    }
    return static_cast<double>(most);
  };
  EXPECT_LE(projections(2), 0.55 * projections(1));
}

// Settings of a run of a model whose embedding is its head as well.
std::string tied_settings(const TinyRun& tiny, const std::string& output, const std::string& more) {
  std::string config = read_text(tiny.config());
  config.replace(config.find("\"tie_word_embeddings\": false"), 28,
                 "\"tie_word_embeddings\": true");
  // The embedding is most of a stage, as it is in small models.
  config.replace(config.find("\"intermediate_size\": 64"), 23, "\"intermediate_size\": 16");
  return tiny.settings("output_dir=" + tiny.path(output).string() +
                       " max_steps=5 report_samples=0 method=full learning_rate=1e-3 model=" +
                       tiny.file("tied.json", config) + " " + more);
}

// An embedding that is the head as well learns at both ends of a pipeline, which add its gradients
// in another order than one rank does.
TEST(SlowCrew, ATiedEmbeddingLearnsAtBothEnds) {
  const TinyRun tiny("crew_tied");
  const auto settings = [&](const std::string& output, const std::string& more) {
    return tied_settings(tiny, output, more);
  };
  // Both ends add two parts, replicas one for each of them.
  for (const int replicas : {2, 4}) {
    const std::string lanes = fmt::format("data_parallel={}", replicas);
    const std::string one_run = fmt::format("one{}", replicas);
    const std::string many_run = fmt::format("many{}", replicas);
    train_on_ranks(settings(one_run, lanes), 1);
    train_on_ranks(settings(many_run, lanes + " pipeline_stages=2"), 2 * replicas);
    const auto one = tiny.events(one_run, "step");
    const auto many = tiny.events(many_run, "step");
    ASSERT_EQ(one.size(), many.size());
    for (size_t i = 0; i < one.size(); ++i) {
      for (const char* value : {"loss", "grad_norm"}) {
        const auto want = one[i][value].get<double>();
        EXPECT_NEAR(many[i][value].get<double>(), want, 1e-6 * want) << value << " " << i;
      }
    }
    const SafetensorsFile a(tiny.path(one_run + "/model.safetensors"));
    const SafetensorsFile b(tiny.path(many_run + "/model.safetensors"));
    ASSERT_EQ(a.entries().size(), b.entries().size());
    double largest = 0;
    for (const SafetensorsEntry& entry : a.entries()) {
      const auto* x = reinterpret_cast<const float*>(entry.bytes.data());
      const auto* y = reinterpret_cast<const float*>(b.find(entry.name)->bytes.data());
      for (size_t i = 0; i < entry.bytes.size() / 4; ++i) {
        largest = worse(largest, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
      }
    }
    EXPECT_LE(largest, 1e-6);
    EXPECT_GT(largest, 0.0);  // it is another order
  }
  // Its turn comes only later where it is a group of rotary's.
  train_on_ranks(settings("turns",
                          "method=rotary static=rotate active_params=95% storage=int8 "
                          "steps_per_rotation=1 pipeline_stages=2"),
                 2);
  EXPECT_EQ(tiny.losses("turns").size(), 5u);
  try {
    train_on_ranks(settings("fused", "update=fused max_grad_norm=0 pipeline_stages=2"), 2);
    ADD_FAILURE() << "both ends updated it";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.hint().find("update=after"), std::string::npos);
  }
}

// A frozen one does not, whatever is learned beside it: then the ends need nothing of each other.
TEST(SlowCrew, ASoftPromptBesideATiedEmbeddingIsOnOneStage) {
  const TinyRun tiny("crew_tied_prompt");
  int runs = 0;
  for (const std::string update :
       {"", "update=fused max_grad_norm=0 gradient_accumulation_steps=3"}) {
    const std::string one = fmt::format("one{}", runs), many = fmt::format("many{}", runs++);
    const auto settings = [&](const std::string& output, const std::string& more) {
      return tied_settings(
          tiny, output,
          "method=prompt prompt_tokens=3 weight_decay=0.1 save_steps=5 " + update + " " + more);
    };
    train_on_ranks(settings(one, ""), 1);
    train_on_ranks(settings(many, "pipeline_stages=2"), 2);
    EXPECT_EQ(tiny.losses(one), tiny.losses(many)) << update;
    for (const char* file : {"/adapter_model.safetensors", "/checkpoint-5/state.safetensors"}) {
      EXPECT_TRUE(tiny.text(one + file) == tiny.text(many + file)) << file << " " << update;
    }
  }
  const Recipe recipe = make_recipe(settings_of(
      tied_settings(tiny, "planned", "method=prompt prompt_tokens=3 pipeline_stages=2")));
  const ModelFiles files = open_model(recipe.model, "", recipe.tokenizer);
  const RanksPlan plan = plan_ranks(recipe, files, 2);
  for (const SessionPlan& rank : plan.ranks) EXPECT_FALSE(rank.updates_tied);
}

// It is one weight all the same: both ends have the sum of its gradients, of which one counts.
TEST(SlowCrew, ATiedEmbeddingIsAsImportantInAPipeline) {
  const TinyRun tiny("crew_importance");
  // The last of what the rotation keeps: a score for each of four groups.
  const auto scores = [&](const std::string& output, int stages) {
    train_on_ranks(tied_settings(tiny, output,
                                 fmt::format("method=rotary static=rotate rotation_groups=block "
                                             "rotation_order=importance active_params=95% "
                                             "steps_per_rotation=1 save_steps=5 "
                                             "pipeline_stages={}",
                                             stages)),
                   stages);
    const SafetensorsFile state(tiny.path(output + "/checkpoint-5/state.safetensors"));
    const auto bytes = state.find("rotary.rotation")->bytes;
    std::vector<double> out(4);
    std::memcpy(out.data(), bytes.data() + bytes.size() - 4 * sizeof(double), 4 * sizeof(double));
    return out;
  };
  const std::vector<double> one = scores("one", 1);
  const std::vector<double> two = scores("two", 2);
  for (size_t group = 0; group < one.size(); ++group) {
    EXPECT_GT(one[group], 0.0);
    EXPECT_NE(one[group], 1.0) << "it was measured";
    EXPECT_NEAR(two[group], one[group], 1e-5 * one[group]) << group;
  }
}

}  // namespace
}  // namespace jackscrew
