// What several ranks settle before a run begins.
#include "train/opening.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "session/fingerprint.h"
#include "session/place.h"
#include "session/plan.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_run.h"
#include "train/crew.h"
#include "train/run_start.h"
#include "train/worker.h"

namespace jackscrew {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Opening, ProgramsOfOneVersion) {
  require_version("1.2.0", "1.2.0");
  expect_message(ErrorKind::device, "this is jackscrew 1.1.9, rank 0 has 1.2.0",
                 [] { require_version("1.2.0", "1.1.9"); });
}

TEST(Opening, TheSameFiles) {
  const RankFacts first{"x86-64-v4", "", 1, 2, 3};
  require_same_files(first, {"x86-64-v3", "", 1, 2, 3});
  for (const auto& [own, what] : {std::pair(RankFacts{"", "", 2, 2, 3}, "model or adapter"),
                                  {RankFacts{"", "", 1, 3, 3}, "lora_original_model"},
                                  {RankFacts{"", "", 1, 2, 4}, "tokenizer"}}) {
    expect_message(ErrorKind::model, fmt::format("the {} here is not that of rank 0", what),
                   [&, &own = own] { require_same_files(first, own); });
  }
}

TEST(Opening, SettingsThatDifferAreNamed) {
  const auto others = [](const std::vector<std::string>& first,
                         const std::vector<std::string>& own) {
    return other_settings(make_recipe(first).options, make_recipe(own).options);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(others({"learning_rate=1e-4", "quiet=true"}, {"learning_rate=0.0001"}), Names{});
  EXPECT_EQ(others({"seed=1"}, {"seed=2", "max_steps=3"}), (Names{"max_steps", "seed"}));
  EXPECT_EQ(others({}, {"communication_timeout=9"}), Names{}) << "each rank has its own";
}

// The libraries of a GPU may lie in an environment, of which a recipe's text says nothing.
TEST(Opening, ARankLooksIntoItsOwnEnvironments) {
  const std::vector<fs::path> own = {"/home/anna/venv"};
  const std::vector<std::string> hosts = {"anna", "anna"};
  const std::string yaml = make_recipe({"device=cuda", "rank_device_memory=2GiB,1GiB"}).to_yaml();
  const Recipe recipe = followed_recipe(yaml, 1, hosts, own);
  EXPECT_EQ(recipe.python_environments, own);
  EXPECT_EQ(recipe.device, "cuda:1");
  EXPECT_EQ(recipe.device_memory, kGiB);
}

// Every rank encodes prompt_init_text by itself, and begins adapters by the original's values.
TEST(Opening, FactsAreOfAllThatARankReads) {
  const TinyRun tiny("rank_files");
  for (const char* seed : {"1", "2"}) {
    tiny.must_train(seed, std::string("method=full max_steps=1 seed=") + seed);
  }
  const auto facts = [&](const std::string& more) {
    const Recipe recipe = make_recipe(settings_of(
        tiny.settings("init=pretrained tokenizer=auto model=" + tiny.path("1").string() + more)));
    return facts_of(recipe, open_model(recipe.model, recipe.adapter, recipe.tokenizer));
  };
  const auto over = [&](const char* original) {
    return facts(" method=lora lora_init=loftq storage=nf4 lora_original_model=" +
                 tiny.path(original).string());
  };
  EXPECT_EQ(over("1").original, over("1").original);
  EXPECT_NE(over("1").original, over("2").original);
  EXPECT_EQ(facts("").original, 0u);
  const uint32_t before = facts("").tokenizer;
  nlohmann::json words = nlohmann::json::parse(tiny.text("1/tokenizer.json"));
  words["normalizer"] = {{"type", "NFC"}};
  tiny.file("1/tokenizer.json", words.dump());
  EXPECT_NE(facts("").tokenizer, before);
  EXPECT_EQ(facts("").model, facts(" tokenizer=bytes").model);
}

// Stages may differ: what one computes no other computes as well.
TEST(Opening, CopiesOfAStageComputeAlike) {
  const RankFacts v4{"x86-64-v4", "", 1}, v3{"x86-64-v3", "", 1}, gpu{"x86-64-v4", "A100", 1};
  const auto all = [](const std::vector<RankFacts>& ranks, const Layout& layout,
                      bool updates_tied = false) {
    return [=] { require_alike(ranks, layout, updates_tied); };
  };
  all({v4, v3}, {.stages = 2, .replicas = 1, .lanes = 1})();
  all({v4, gpu, v4, gpu}, {.stages = 2, .replicas = 2, .lanes = 2})();
  const Layout copies{.stages = 1, .replicas = 2, .lanes = 2};
  for (const auto& pair : {std::pair(v4, v3), std::pair(v3, v4)}) {
    const std::string error = error_of(ErrorKind::device, all({pair.first, pair.second}, copies));
    EXPECT_NE(hint_of(error).find("isa=x86-64-v3"), std::string::npos) << error;
  }
  expect_message(ErrorKind::device, "rank 1 would compute with A100, rank 0 with its CPU",
                 all({v4, gpu}, copies));
  // What a GPU computes depends on its library, not on the CPU beside it.
  const RankFacts beside_v3{"x86-64-v3", "A100", 1}, older{"x86-64-v4", "A100 and cuBLAS 12.4", 1};
  all({gpu, beside_v3}, copies)();
  expect_message(ErrorKind::device, "rank 1 would compute with A100 and cuBLAS 12.4, rank 0",
                 all({gpu, older}, copies));
  expect_message(ErrorKind::device, "rank 3 would compute with its CPU, rank 1 with A100",
                 all({v4, gpu, v4, v4}, {.stages = 2, .replicas = 2, .lanes = 2}));
  // Both ends hold a tied embedding; the stages between them do not.
  const Layout stages{.stages = 3, .replicas = 1, .lanes = 1};
  all({v4, gpu, v4}, stages, true)();
  for (const auto& ends : {std::pair(v4, v3), std::pair(v3, v4)}) {
    const std::string error =
        error_of(ErrorKind::device, all({ends.first, v4, ends.second}, stages, true));
    EXPECT_NE(error.find("copies of the embedding"), std::string::npos) << error;
    EXPECT_NE(hint_of(error).find("isa=x86-64-v3"), std::string::npos) << error;
  }
  expect_message(ErrorKind::device, "rank 2 would compute with A100, rank 0 with its CPU",
                 all({v4, v4, gpu}, stages, true));
}

// Only where it learns, and only where a pipeline has two copies of it.
TEST(Opening, EndsOfAPipelineThatUpdateATiedEmbedding) {
  const auto updates = [](const char* model, const std::string& method, int stages) {
    const Recipe recipe = make_recipe({"sequence_len=16", method});
    const ModelFiles files = open_model(golden_model(model));
    SessionUse use = training_use(recipe);
    use.place = {{.stages = stages}, 0, stage_split_of(recipe, files.config, stages)};
    return Session::rehearse(recipe, files, use).updates_tied;
  };
  EXPECT_TRUE(updates("gqa_tied", "method=full", 2));
  EXPECT_TRUE(updates("gqa_tied", "method=rotary", 2)) << "where static=train";
  EXPECT_FALSE(updates("gqa_tied", "method=lora", 2));
  EXPECT_FALSE(updates("gqa_tied", "method=full", 1));
  EXPECT_FALSE(updates("mha_untied", "method=full", 2));
}

TEST(Opening, EachRankHasAGpuOfItsOwn) {
  const TinyRun tiny("rank_devices");
  const std::vector<std::string> hosts = {"anna", "bert", "anna", "anna"};
  const auto device = [&](const std::string& settings, int rank) {
    return recipe_on(make_recipe(settings_of(tiny.settings(settings))), rank, hosts).device;
  };
  for (const auto& [rank, wanted] :
       {std::pair(0, "cuda:0"), {1, "cuda:0"}, {2, "cuda:1"}, {3, "cuda:2"}}) {
    EXPECT_EQ(device("device=cuda", rank), wanted) << rank;
    EXPECT_EQ(device("device=cuda:1", rank), "cuda:1") << rank;
  }
  const std::string listed =
      "rank_devices=cpu,cuda,cuda,cuda:0 rank_device_memory=1GiB,2GiB,3MiB,4MiB";
  EXPECT_EQ(device(listed, 0), "cpu");
  EXPECT_EQ(device(listed, 2), "cuda:0");
  EXPECT_EQ(device(listed, 3), "cuda:0");
  const Recipe recipe = make_recipe(settings_of(tiny.settings(listed)));
  EXPECT_EQ(of_rank(recipe, 1).device_memory, 2 * kGiB);
  EXPECT_EQ(budget_option(of_rank(recipe, 1)), "rank_device_memory");
  EXPECT_EQ(budget_option(recipe), "device_memory");
  expect_message(ErrorKind::usage, "rank_devices has 4 entries for 2 ranks",
                 [&] { layout_of(recipe, 2); });
}

// Any number that can share the lanes of the run before, not that run's own alone.
TEST(Opening, RanksThatCannotShareLanesAreToldWhoCan) {
  const TinyRun tiny("opening_lanes");
  fs::create_directories(tiny.path("out/checkpoint-2/checkpoint.json"));
  const Recipe recipe = make_recipe(
      settings_of(tiny.settings("pipeline_stages=2 output_dir=" + tiny.path("out").string())));
  tiny.file("out/recipe.yaml", "data_parallel: 4\n");
  const std::string error = error_of(ErrorKind::usage, [&] { with_lanes(recipe, 6); });
  EXPECT_EQ(hint_of(error).find("start one of 2, 4, 8 ranks, or give another output_dir"), 0u)
      << error;
  for (const int ranks : {2, 4, 8}) EXPECT_EQ(with_lanes(recipe, ranks).data_parallel, 4);
  // Not of a run: no run has so few.
  tiny.file("out/recipe.yaml", "data_parallel: 0\n");
  EXPECT_EQ(with_lanes(recipe, 6).data_parallel, 3);
}

TEST(Opening, AStopOfOneRankOfSeveralMayBeForWhatAnotherSaid) {
  EXPECT_EQ(hint_after_stop(1, "run it again"), "run it again");
  EXPECT_EQ(hint_after_stop(2, "run it again"),
            "if another rank has failed, mend that first; run it again");
}

TEST(Opening, RanksOfAMachineShareItsMemory) {
  const std::vector<SharedMemory> apart = {{"anna", 6 * kGiB, 10 * kGiB},
                                           {"bert", 6 * kGiB, 10 * kGiB}};
  require_fit_together(apart);
  const std::vector<SharedMemory> beside = {
      {"anna", 6 * kGiB, 10 * kGiB}, {"bert", kGiB, 2 * kGiB}, {"anna", 5 * kGiB, 11 * kGiB}};
  expect_message(ErrorKind::does_not_fit,
                 "the 2 ranks on anna need 11.00 GiB together, but only 10.00 GiB is free there",
                 [&] { require_fit_together(beside); });
  const std::vector<SharedMemory> budgeted = {{"anna", 6 * kGiB, {}}, {"anna", 6 * kGiB, {}}};
  require_fit_together(budgeted);
  // cuda:0 to either rank: two GPUs, or the same one.
  const auto on_gpus = [](const char* first, const char* second) {
    return std::vector<SharedMemory>{{"cuda:0 of anna", 6 * kGiB, 10 * kGiB, first},
                                     {"cuda:0 of anna", 6 * kGiB, 10 * kGiB, second}};
  };
  require_fit_together(on_gpus("a", "b"));
  expect_message(ErrorKind::does_not_fit, "the 2 ranks on cuda:0 of anna need 12.00 GiB together",
                 [&] { require_fit_together(on_gpus("a", "a")); });
}

TEST(Opening, EveryRankNeedsRoomForAStep) {
  constexpr int64_t kBytes = 1 << 20;
  const TinyRun tiny("opening_data");
  const Recipe recipe = make_recipe(settings_of(tiny.settings("data_parallel=2")));
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  for (const DataMemory data : {DataMemory{.planning = kBytes}, DataMemory{.step = kBytes}}) {
    Crew crew(recipe, files, nullptr, recipe.to_yaml());
    const SessionPlan plan = crew.rehearse(data);
    EXPECT_EQ(crew.use().data_bytes, kBytes);
    const auto needed = [&](const SessionUse& use) {
      return memory_of(recipe, use, plan, "anna").front().needed;
    };
    EXPECT_EQ(needed(crew.use()) - needed(training_use(recipe)), kBytes);
  }
  on_ranks(2, {}, [&](Transport* transport) {
    Crew crew(recipe, files, transport, recipe.to_yaml());
    crew.rehearse({.step = kBytes});
    EXPECT_EQ(crew.use().data_bytes, 2 * kBytes);  // and the message to the other one
    dismiss(transport);
  });
}

TEST(Opening, AnotherTrainingHasAnotherFingerprint) {
  const auto of = [](const std::string& model) {
    return model_fingerprint(open_model(golden_model(model)), {});
  };
  const TinyRun tiny("fingerprint");
  const fs::path copy = tiny.path("copy");
  fs::copy(golden_model("mha_untied"), copy, fs::copy_options::recursive);
  const auto copied = [&] { return model_fingerprint(open_model(copy.string()), {}); };
  EXPECT_EQ(copied(), of("mha_untied"));
  std::string weights = read_text(copy / "model.safetensors");
  uint64_t header = 0;  // bytes of it follow its size
  std::memcpy(&header, weights.data(), sizeof header);
  weights.at(sizeof header + header) ^= 1;
  write_text_atomic(copy / "model.safetensors", weights);
  EXPECT_NE(copied(), of("mha_untied"));
  std::string config = read_text(copy / "config.json");
  fs::copy_file(fs::path(golden_model("mha_untied")) / "model.safetensors",
                copy / "model.safetensors", fs::copy_options::overwrite_existing);
  EXPECT_EQ(copied(), of("mha_untied"));
  const std::string name = "\"rms_norm_eps\": ";
  ASSERT_NE(config.find(name), std::string::npos);
  write_text_atomic(copy / "config.json",
                    config.replace(config.find(name), name.size(), name + "1"));
  EXPECT_NE(copied(), of("mha_untied"));
}

// What its weights mean: the same tensors with another lora_alpha are another adapter.
TEST(Opening, AnAdapterOfOtherSettingsHasAnotherFingerprint) {
  const TinyRun tiny("fingerprint_adapter");
  const fs::path adapter = tiny.path("adapter");
  fs::copy(golden_path("lora"), adapter, fs::copy_options::recursive);
  const ModelFiles files = open_model(golden_model("gqa_tied"));
  const uint32_t before = model_fingerprint(files, adapter);
  EXPECT_EQ(model_fingerprint(files, golden_path("lora")), before);
  nlohmann::json config = nlohmann::json::parse(tiny.text("adapter/adapter_config.json"));
  config["base_model_name_or_path"] = "elsewhere";
  tiny.file("adapter/adapter_config.json", config.dump());
  EXPECT_EQ(model_fingerprint(files, adapter), before);
  config["lora_alpha"] = 7;
  tiny.file("adapter/adapter_config.json", config.dump());
  EXPECT_NE(model_fingerprint(files, adapter), before);
}

// Its files are compared with those of rank 0: they are not held against the recipe.
TEST(Opening, ARankFollowsARecipeBeforeItReadsAnAdapter) {
  const std::string yaml = make_recipe({"method=lora", "adapter=not_here"}).to_yaml();
  const std::vector<std::string> hosts = {"anna", "bert"};
  EXPECT_EQ(followed_recipe(yaml, 1, hosts, {}).adapter, "not_here");
}

// A fingerprint looks at some pages of each tensor.
TEST(Opening, AChecksumReadsEveryByte) {
  const TinyRun tiny("checksum");
  tiny.must_train("wide", "method=full max_steps=1 tokenizer=bytes init=random model=" +
                              tiny.file("wide.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2000,
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 3,
    "num_key_value_heads": 3, "max_position_embeddings": 128, "tie_word_embeddings": true})"));
  const fs::path path = tiny.path("wide") / "model.safetensors";
  const auto checksum = [&] { return model_checksum(open_model(tiny.path("wide").string())); };
  const uint32_t before = checksum();
  std::string weights = read_text(path);
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  const auto names = nlohmann::json::parse(weights.substr(sizeof header, header));
  const size_t begin = names["model.embed_tokens.weight"]["data_offsets"][0];
  weights.at(sizeof header + header + begin + 5000) ^= 1;
  write_text_atomic(path, weights);
  EXPECT_NE(checksum(), before);
}

// Others in the files may be of types that nobody reads.
TEST(Opening, AChecksumIsOfWhatTheModelNeeds) {
  const TinyRun tiny("checksum_stray");
  const fs::path copy = tiny.path("copy");
  fs::copy(golden_model("mha_untied"), copy, fs::copy_options::recursive);
  std::string weights = read_text(copy / "model.safetensors");
  uint64_t size = 0;
  std::memcpy(&size, weights.data(), sizeof size);
  auto header = nlohmann::json::parse(weights.substr(sizeof size, size));
  const std::string bytes = weights.substr(sizeof size + size) + std::string(8, 'x');
  header["stray"] = {
      {"dtype", "I64"}, {"shape", {1}}, {"data_offsets", {bytes.size() - 8, bytes.size()}}};
  const std::string text = header.dump();
  size = text.size();
  write_text_atomic(copy / "model.safetensors",
                    std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + bytes);
  const ModelFiles with = open_model(copy.string());
  const ModelFiles without = open_model(golden_model("mha_untied"));
  ASSERT_EQ(with.source->names().size(), without.source->names().size() + 1);
  EXPECT_EQ(model_checksum(with), model_checksum(without));
  EXPECT_EQ(stored_bytes(with), stored_bytes(without));
  EXPECT_EQ(model_fingerprint(with, {}), model_fingerprint(without, {}));
}

// In pieces, of a file whose largest tensor is longer than one.
TEST(Opening, AChecksumSaysHowFarItIs) {
  const TinyRun tiny("checksum_progress");
  tiny.must_train("large", "method=full max_steps=1 tokenizer=bytes init=random model=" +
                               tiny.file("large.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300000,
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": true})"));
  const ModelFiles files = open_model(tiny.path("large").string());
  int64_t done = 0, most = 0;
  model_checksum(files, [&](int64_t bytes) {
    done += bytes;
    most = std::max(most, bytes);
  });
  EXPECT_EQ(done, stored_bytes(files));
  EXPECT_GT(done, 300000 * 16 * 4);
  EXPECT_LT(most, 300000 * 16 * 4);
}

}  // namespace
}  // namespace jackscrew
