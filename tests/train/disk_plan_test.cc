// The plan of the disk against the files that runs leave, to the byte.
#include "train/disk_plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/process_memory.h"
#include "session/adapter.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_run.h"
#include "tests/support/train_quietly.h"

namespace jackscrew {
namespace {

int64_t bytes_below(const fs::path& directory) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

// The bytes of the largest file of weights or states.
int64_t largest_below(const fs::path& directory) {
  int64_t largest = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const fs::path ending = entry.path().extension();
    if (ending != ".safetensors" && ending != ".bin" && ending != ".gguf") continue;
    largest = std::max(largest, static_cast<int64_t>(entry.file_size()));
  }
  return largest;
}

// What stands in the directory of a run beside its result.
bool is_beside_the_result(const std::string& name) {
  return name == "recipe.yaml" || name == "train_log.jsonl" || name == "report.html" ||
         name.starts_with("events.out") || name.starts_with("checkpoint-");
}

struct Found {
  std::vector<int64_t> checkpoints;
  int64_t result = 0, exports = 0;
};

Found found_in(const fs::path& output) {
  Found found;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-")) {
      found.checkpoints.push_back(bytes_below(entry.path()));
    } else if (name == "exports") {
      found.exports = bytes_below(entry.path());
    } else if (!is_beside_the_result(name)) {
      found.result += entry.is_directory() ? bytes_below(entry.path())
                                           : static_cast<int64_t>(entry.file_size());
    }
  }
  return found;
}

DiskPlan plan_of(const std::string& text, int64_t total_steps) {
  const Recipe recipe = with_adapter_options(make_recipe(settings_of(text)));
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  return plan_disk(recipe, files, make_tokenizer(recipe.tokenizer, files), total_steps);
}

class SlowDiskPlans : public ::testing::Test {
 protected:
  SlowDiskPlans() : tiny_("disk_plan") {
    std::string tied = read_text(tiny_.config());
    tied.replace(tied.find("false"), 5, "true");
    tied_ = tiny_.file("tied.json", tied);
  }

  // Six steps, each of which leaves a checkpoint. Chats as templates write them have room.
  std::string six_steps(const std::string& name, const std::string& more) const {
    return tiny_.settings("output_dir=" + tiny_.path(name).string() +
                          " max_steps=6 save_steps=1 save_total_limit=0 report_samples=0 "
                          "logging_steps=6 sequence_len=128 " +
                          more);
  }

  // Trains in the directory `name` and compares; all checkpoints are as large where `alike`.
  void expect_planned(const std::string& name, const std::string& more, bool alike) const {
    SCOPED_TRACE(more);
    const std::string text = six_steps(name, more);
    const DiskPlan plan = plan_of(text, 6);
    train_quietly(text);
    const Found found = found_in(tiny_.path(name));
    ASSERT_EQ(std::ssize(found.checkpoints), 6);
    const auto [least, most] = std::ranges::minmax(found.checkpoints);
    EXPECT_EQ(plan.checkpoint, most);
    EXPECT_TRUE(!alike || least == most);
    EXPECT_EQ(plan.checkpoints, 6);
    EXPECT_EQ(plan.result, found.result);
    EXPECT_EQ(plan.exports, found.exports);
    const int64_t largest = largest_below(tiny_.path(name));
    EXPECT_GE(plan.largest_file, largest);
    EXPECT_TRUE(plan.largest_file == largest || !more.starts_with("method=full"));
    EXPECT_EQ(plan.exports > 0, more.find("export=") != std::string::npos);
  }
  void expect_planned(const std::string& more, bool alike) {
    expect_planned("run" + std::to_string(number_++), more, alike);
  }

  TinyRun tiny_;
  std::string tied_;
  int number_ = 0;
};

TEST_F(SlowDiskPlans, Full) {
  for (const char* more :
       {"storage=f32", "storage=bf16", "storage=int8_affine", "storage=int8_row product=int8",
        "optimizer=adamw_8bit", "optimizer=adamw_8bit storage=bf16", "chat_template=chatml",
        "gradient_accumulation_steps=2 packing=false"}) {
    expect_planned(std::string("method=full ") + more, true);
  }
  expect_planned(
      "method=full eval_steps=1 load_best_model_at_end=true early_stopping_patience=6 "
      "loss_watchdog_threshold=99 eval_data=" +
          tiny_.eval_data(),
      true);
  expect_planned("method=full model=" + tied_, true);
  expect_planned("method=full storage=bf16 model=" + tied_, true);
}

TEST_F(SlowDiskPlans, Lora) {
  for (const char* more :
       {"lora_rank=4", "lora_rank=4 lora_dropout=0.1 use_rslora=true lora_alpha=3.5",
        "lora_target=q_proj,down_proj lora_rank=1", "optimizer=adamw_8bit lora_rank=64",
        "storage=nf4", "storage=int8", "storage=bf16", "chat_template=llama3",
        "use_dora=true rank_pattern=q_proj=3 storage=nf4", "lora_target=.*0.*_proj",
        "modules_to_save=embed_tokens,lm_head storage=bf16"}) {
    expect_planned(std::string("method=lora ") + more, true);
  }
  expect_planned("method=prompt storage=nf4", true);
  // PEFT has what is embedding and head twice.
  expect_planned("method=lora modules_to_save=embed_tokens model=" + tied_, true);
  expect_planned("method=lora model=" + tied_, true);
}

// Windows that are open when a checkpoint is written are in it.
TEST_F(SlowDiskPlans, Galore) {
  for (const char* settings :
       {"method=galore projection_update_gap=2 projection_window=1",
        "method=galore storage=bf16 projection_update_gap=3 projection_window=2",
        "method=qgalore projection_update_gap=4 stagger_refreshes=false"}) {
    expect_planned(settings, false);
  }
}

TEST_F(SlowDiskPlans, Rotary) {
  const std::string rotary = "method=rotary storage=int8 steps_per_rotation=1 active_params=40% ";
  for (const char* more :
       {"rotation_groups=matrix",
        "rotation_groups=matrix churn=1 moments=reset",
        "rotation_groups=attention,mlp active_params=70%",
        "rotation_groups=attention active_params=50%",
        "rotation_groups=block active_params=50% master=mmap",
        "rotation_groups=matrix master=mmap moments=keep",
        "rotation_groups=matrix master=mmap moments=reset optimizer=adamw_8bit",
        "rotation_groups=matrix master_dtype=bf16",
        "rotation_groups=matrix master_dtype=bf16 moments=reset rotation_order=ascending",
        "rotation_groups=matrix master_dtype=bf16 master=mmap rotation_order=random",
        "static=rotate active_params=60% moments=reset rotation_order=descending",
        "static=freeze moments=reset",
        "storage=f32 moments=reset",
        "storage=f32 moments=keep",
        "storage=bf16 static=freeze",
        "storage=bf16 moments=reset",
        "optimizer=adamw_8bit",
        "optimizer=adamw moments=keep churn=0.3 active_params=80%",
        "steps_per_rotation=auto",
        "steps_per_rotation=4 master=mmap",
        "overlap_rotation=true"}) {
    expect_planned(rotary + more, false);
  }
  expect_planned(rotary + "model=" + tied_, false);
}

// Gradients decide here who is active: of groups that are alike it does not matter.
TEST_F(SlowDiskPlans, RotaryByImportance) {
  expect_planned(
      "method=rotary storage=int8 steps_per_rotation=1 rotation_order=importance "
      "moments=reset rotation_groups=block active_params=50%",
      false);
}

// The tokenizer, the template and generation_config.json are then a model's own.
TEST_F(SlowDiskPlans, OfAModelWithATokenizer) {
  expect_planned("model", "method=full storage=bf16 chat_template=chatml", true);
  const std::string model = "init=pretrained tokenizer=auto model=" + tiny_.path("model").string();
  fs::create_directory(tiny_.path("model/additional_chat_templates"));
  tiny_.file("model/additional_chat_templates/default.jinja",
             "{% for m in messages %}{{ m.content }}{% endfor %}");
  tiny_.file("model/special_tokens_map.json", "{}");
  expect_planned("method=full " + model, true);
  expect_planned("method=full chat_template=llama3 " + model, true);
  expect_planned("adapter", "method=lora lora_rank=3 " + model, true);
  expect_planned("method=lora adapter=" + tiny_.path("adapter").string() + " " + model, true);
}

TEST_F(SlowDiskPlans, Exports) {
  expect_planned("model", "method=full storage=bf16 export=hf,gguf,gguf:q4_k_m,hf:nf4", true);
  expect_planned("method=full tokenizer=bytes chat_template=chatml export=gguf:f16,hf:f32", true);
  const auto over = [&](const std::string& model) {
    return "init=pretrained tokenizer=auto model=" + tiny_.path(model).string();
  };
  const std::string lora = "method=lora lora_rank=2 ";
  expect_planned(lora + "storage=nf4 export=hf,gguf,gguf:q5_k_s,hf:nf4 " + over("model"), true);
  expect_planned(lora + "use_dora=true chat_template=llama3 export=gguf:q8_0 " + over("model"),
                 true);
  expect_planned(lora + "lora_init=pissa max_shard_size=20kB export=hf:f32 " + over("model"), true);
  // Of a model in few bits a weight with an adapter becomes f32, others stay.
  const Outcome packed =
      run(fmt::format("export model={} output={} storage=q4_0 --quiet 2>&1",
                      tiny_.path("model").string(), tiny_.path("q.gguf").string()));
  ASSERT_EQ(packed.exit_code, 0) << packed.out;
  expect_planned(lora + "lora_target=q_proj export=gguf,hf " + over("q.gguf"), true);
  // Where the result will be, and whether there are weights, a plan need not know.
  const auto planned = [&](const std::string& more) {
    return plan_of(tiny_.settings(lora + "export=gguf:q8_0 " + more), 6).exports;
  };
  EXPECT_GT(planned(over("model")), 0);
  EXPECT_EQ(planned(over("model")), planned(over("model") + " output_dir=anywhere"));
  EXPECT_GT(planned("model=llama-7b checkpoint_dtype=bf16"), int64_t{6'738'415'616} * 34 / 32);
}

using DiskPlans = SlowDiskPlans;  // those that train nothing

// What a run has on the disk at once.
TEST_F(DiskPlans, CountsCheckpoints) {
  const auto disk = [&](const std::string& more, int64_t total_steps) {
    return plan_of(tiny_.settings("method=lora lora_rank=1 " + more), total_steps);
  };
  // save_total_limit is 2, and the new one is whole before the oldest goes.
  const DiskPlan plan = disk("save_steps=10", 100);
  EXPECT_EQ(plan.checkpoints, 3);
  EXPECT_EQ(plan.masters, 0);
  EXPECT_EQ(plan.all_checkpoints(), 3 * plan.checkpoint);
  EXPECT_EQ(plan.peak(), 3 * plan.checkpoint + plan.result);
  EXPECT_EQ(disk("save_steps=10", 0).checkpoints, 3);
  EXPECT_EQ(disk("save_steps=10", 20).checkpoints, 2);
  EXPECT_EQ(disk("save_steps=10 save_total_limit=0", 95).checkpoints, 10);
  EXPECT_EQ(disk("save_steps=10 save_total_limit=1000000000", 95).checkpoints, 10);
  expect_message(ErrorKind::usage, "expected a whole number from 0 to 1000000000",
                 [&] { disk("save_steps=10 save_total_limit=9223372036854775807", 95); });
  EXPECT_EQ(disk("", 20).checkpoints, 0);
  // That of the best evaluation stays beside them.
  const std::string best = "val_size=4 eval_steps=5 load_best_model_at_end=true ";
  EXPECT_EQ(disk(best + "save_steps=10", 100).checkpoints, 4);
  EXPECT_EQ(disk(best, 10).checkpoints, 2);
  // What coincides is saved once: 4, 6, 8, 12.
  const std::string both = "val_size=4 eval_steps=6 load_best_model_at_end=true save_steps=4 ";
  EXPECT_EQ(disk(both + "save_total_limit=0", 12).checkpoints, 4);
  EXPECT_EQ(disk(both + "save_total_limit=0", 13).checkpoints, 5);
}

// Of a long run it is the largest file, about 250 bytes for a line.
TEST_F(DiskPlans, TheLogIsAFile) {
  const auto largest = [&](const std::string& more) {
    return plan_of(tiny_.settings("method=lora lora_rank=1 " + more), 1'000'000).largest_file;
  };
  EXPECT_GT(largest("logging_steps=1"), 240'000'000);
  EXPECT_LT(largest("logging_steps=1"), 300'000'000);
  EXPECT_LT(largest("logging_steps=100"), 3'000'000);
  EXPECT_GT(largest("logging_steps=100 eval_steps=50 val_size=4"), 6'000'000);
}

// Exports are written when the memory of what trains is free again.
TEST_F(DiskPlans, ExportsTakeNoMemoryOfTraining) {
  const fs::path output = fs::path("/dev/shm") / fmt::format("jackscrew_exports_{}", ::getpid());
  std::error_code error;
  if (!files_take_memory(output) || !fs::create_directory(output, error)) {
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  }
  const auto in_memory = [&](const std::string& more) {
    const Recipe recipe = with_adapter_options(make_recipe(
        settings_of(tiny_.settings("method=full output_dir=" + output.string() + " " + more))));
    const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
    return bytes_in_memory(plan_disk(recipe, files, make_tokenizer(recipe.tokenizer, files), 6),
                           recipe.output_dir);
  };
  EXPECT_GT(in_memory(""), 0);
  EXPECT_EQ(in_memory("export=gguf:q8_0,hf:f32"), in_memory(""));
  fs::remove(output, error);
}

TEST_F(DiskPlans, MastersInFiles) {
  const std::string rotary = "method=rotary storage=int8 rotation_groups=block moments=reset ";
  const auto masters = [&](const std::string& more) {
    return plan_of(tiny_.settings(rotary + more), 6).masters;
  };
  const int64_t elements = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32);  // of both blocks
  // A matrix is written beside its old file.
  const int64_t largest = 64 * 32;
  EXPECT_EQ(masters("active_params=50% master=mmap"), 4 * (elements + largest));
  EXPECT_EQ(masters("active_params=50% master=mmap master_dtype=bf16"), 2 * (elements + largest));
  EXPECT_EQ(masters("active_params=50% master=ram"), 0);
}

TEST_F(SlowDiskPlans, TheProgramTellsThem) {
  for (const char* more :
       {"method=full storage=bf16", "method=rotary active_params=40% master=mmap"}) {
    const std::string settings = std::string("max_steps=4 save_steps=2 output_dir=") +
                                 tiny_.path("out").string() + " overwrite=true " + more;
    const Outcome planned = run("plan --json " + tiny_.settings(settings));
    ASSERT_EQ(planned.exit_code, 0);
    const auto disk = nlohmann::json::parse(planned.out)["disk"];
    tiny_.must_train("out", settings);
    const Found found = found_in(tiny_.path("out"));
    ASSERT_EQ(found.checkpoints.size(), 2u);
    EXPECT_EQ(disk["checkpoints"], 2 * std::ranges::max(found.checkpoints)) << more;
    EXPECT_EQ(disk["result"], found.result) << more;
    EXPECT_EQ(disk["masters"], tiny_.events("out", "memory").back()["disk"]["peak"]) << more;
  }
}

}  // namespace
}  // namespace jackscrew
