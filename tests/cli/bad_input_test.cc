// Input and disks that are not as they should be, through the program: each ends in one clear line
// and the documented exit code, with nothing written or lost. Here is what takes more than data;
// bad_input_cases_test.cc has the rest.
#include <sys/mount.h>

#include <cstring>
#include <functional>
#include <limits>

#include "tests/cli/expect_refused.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowBadInput : public ::testing::Test {
 protected:
  SlowBadInput() : tiny_("bad_input") {}

  // Refused before anything is written.
  void expect_nothing(const std::string& settings, int exit_code,
                      const std::vector<std::string>& words) {
    expect_refused(run(tiny_.train("out", "max_steps=2 " + settings) + kErrorsOnly), exit_code,
                   words);
    EXPECT_FALSE(fs::exists(tiny_.path("out"))) << settings;
  }
  // Refused with the output directory as it was.
  void expect_unchanged(const std::string& settings, int exit_code,
                        const std::vector<std::string>& words) {
    const auto before = contents(tiny_.path("out"));
    expect_refused(run(tiny_.train("out", settings) + kErrorsOnly), exit_code, words);
    EXPECT_TRUE(contents(tiny_.path("out")) == before) << settings;
  }
  // A model directory with weights and tokenizer.
  fs::path make_model() {
    tiny_.must_train("model", "method=full max_steps=1");
    fs::remove_all(tiny_.path("model/train_log.jsonl"));
    return tiny_.path("model");
  }
  std::string use_model() const {
    return "init=pretrained model=" + tiny_.path("model").string() + " ";
  }

  TinyRun tiny_;
};

// Rewrites the header of a safetensors file; its data stays.
void edit_header(const fs::path& file, const std::function<void(json&)>& edit) {
  const std::string bytes = read_text(file);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  json header = json::parse(bytes.substr(8, size));
  edit(header);
  const std::string text = header.dump();
  std::string prefix(8, '\0');
  const uint64_t new_size = text.size();
  std::memcpy(prefix.data(), &new_size, sizeof new_size);
  write_text_atomic(file, prefix + text + bytes.substr(8 + size));
}

TEST_F(SlowBadInput, Models) {
  const fs::path model = make_model();
  const fs::path weights = model / "model.safetensors";
  const std::string whole = read_text(weights);
  const auto damaged = [&](const std::function<void(json&)>& edit,
                           const std::vector<std::string>& words) {
    edit_header(weights, edit);
    expect_nothing(use_model(), 5, words);
    write_text_atomic(weights, whole);
  };
  write_text_atomic(weights, whole.substr(0, whole.size() / 2));
  expect_nothing(use_model(), 5, {"model.safetensors", "tensor"});
  write_text_atomic(weights, whole);
  damaged(
      [](json& h) {
        h["model.embed_tokens.weight"]["shape"] = {32, 260};
      },
      {"model.embed_tokens.weight has shape [32, 260]", "asks for [260, 32]",
       tiny_.path("model").string(), "hint: "});
  damaged([](json& h) { h["lm_head.weight"]["dtype"] = "I32"; },
          {"lm_head.weight", "I32", "supported: F32, BF16, F16"});
  damaged(
      [](json& h) {
        h["model.layers.0.self_attn.q_proj.wrong"] = h["model.layers.0.self_attn.q_proj.weight"];
        h.erase("model.layers.0.self_attn.q_proj.weight");
      },
      {"model.layers.0.self_attn.q_proj.weight is missing", "hint: "});

  const json index = {{"weight_map", {{"lm_head.weight", "model-00002-of-00002.safetensors"}}}};
  fs::rename(weights, model / "elsewhere");
  expect_nothing(use_model(), 5, {"neither model.safetensors nor", "config.json init=random"});
  write_text_atomic(model / "model.safetensors.index.json", index.dump());
  expect_nothing(use_model(), 5, {"shard model-00002-of-00002.safetensors is missing", "hint: "});
  fs::rename(model / "elsewhere", weights);
}

TEST_F(SlowBadInput, Memory) {
  // What the hint says is so.
  const Outcome refused =
      run(tiny_.train("out", "micro_batch_size=8 method=full device_memory=1MiB") + kErrorsOnly);
  const size_t hint = refused.out.find("hint: ") + 6;
  const std::string knobs = refused.out.substr(hint, refused.out.find(" needs ", hint) - hint);
  tiny_.must_train("fits",
                   "max_steps=1 micro_batch_size=8 method=full device_memory=1MiB " + knobs);
  make_model();
  for (const std::string& command :
       {"eval " + tiny_.settings(use_model()),
        "generate prompt=x max_new_tokens=4 tokenizer=bytes " + use_model()}) {
    expect_refused(run(command + " device_memory=1KiB" + kErrorsOnly), 3,
                   {"budget 1.0 KiB (device_memory)", "hint: "});
  }
}

// Finite, and lost all the same: a softmax that is saturated has no slope.
TEST_F(SlowBadInput, NoGradient) {
  const Outcome outcome = run(tiny_.train("flat",
                                          "method=lora learning_rate=1e6 warmup_steps=0 "
                                          "max_steps=6 report_samples=0") +
                              " 2>&1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  const std::string warning = ": the gradient is 0, so nothing learns";
  const size_t first = outcome.out.find(warning);
  ASSERT_NE(first, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find(warning, first + 1), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("warning: learning_rate is 1e+06, "), std::string::npos)
      << outcome.out;
  // Nor has an adapter one whose inputs are all left out.
  const Outcome dropped =
      run(tiny_.train("dropped",
                      "method=lora lora_dropout=0.999999 lora_target=q_proj max_steps=1 "
                      "report_samples=0") +
          " 2>&1");
  EXPECT_NE(dropped.out.find(warning + "; a learning_rate that is far too high does that, or a "
                                       "lora_dropout close to 1"),
            std::string::npos)
      << dropped.out;
  EXPECT_EQ(dropped.out.find("warning: learning_rate"), std::string::npos) << dropped.out;
  const Outcome still =
      run(tiny_.train("still",
                      "method=lora lora_dropout=0.999999 lora_target=q_proj max_steps=1 "
                      "report_samples=0 learning_rate=0") +
          " 2>&1");
  EXPECT_NE(still.out.find("warning: learning_rate is 0: nothing learns\n"), std::string::npos)
      << still.out;
  EXPECT_NE(still.out.find(warning + "; a lora_dropout close to 1 does that\n"), std::string::npos)
      << still.out;
}

TEST_F(SlowBadInput, NotFinite) {
  const std::string hot = "method=full learning_rate=1e30 max_steps=6 save_steps=1 warmup_steps=2 ";
  const Outcome outcome = run(tiny_.train("out", hot) + kErrorsOnly);
  expect_refused(outcome, 6, {" not finite", "nan", "lower learning_rate", "checkpoint-"});
  EXPECT_EQ(outcome.out.find("-nan"), std::string::npos);
  // The last checkpoint may have it in it already: then the one before goes on.
  const std::string before =
      "; if the same happens from there, resume=" + tiny_.path("out/checkpoint-").string();
  const size_t found = outcome.out.find(before);
  ASSERT_NE(found, std::string::npos) << outcome.out;
  const std::string name = outcome.out.substr(found + before.size());
  EXPECT_TRUE(fs::exists(tiny_.path("out/checkpoint-" + name.substr(0, name.find(' ')))));
  EXPECT_FALSE(fs::exists(tiny_.path("out/model.safetensors")));
  EXPECT_EQ(tiny_.events("out").back()["event"], "warn");
  EXPECT_TRUE(fs::exists(tiny_.path("out/report.html")));
  // The step is found as well when it is not looked at before the last.
  const std::string line = outcome.out.substr(0, outcome.out.find('\n'));
  EXPECT_NE(line.find("step "), std::string::npos);
  EXPECT_EQ(line.find("step 6"), std::string::npos);
  const Outcome seldom =
      run(tiny_.train("seldom", hot + "save_steps=0 logging_steps=6") + kErrorsOnly);
  expect_refused(seldom, 6, {line});
  EXPECT_EQ(seldom.out.find("checkpoint is"), std::string::npos) << seldom.out;
  // Or after steps that a learner has logged.
  expect_refused(
      run(tiny_.train("rotary",
                      "method=rotary active_params=50% steps_per_rotation=3 logging_steps=10 "
                      "learning_rate=1e30 max_steps=20") +
          kErrorsOnly),
      6, {"not finite", "lower learning_rate"});
  EXPECT_EQ(tiny_.events("rotary").back()["event"], "warn");
  // Or by the learner, before the program looks.
  expect_refused(
      run(tiny_.train("rotated",
                      "method=rotary static=freeze active_params=50% steps_per_rotation=1 "
                      "warmup_steps=0 group_learning_rate=1e38 logging_steps=10 max_steps=3") +
          kErrorsOnly),
      6, {"weights of layers.", "no longer finite", "group_learning_rate"});
  EXPECT_EQ(tiny_.events("rotated").back()["event"], "warn");
  EXPECT_TRUE(fs::exists(tiny_.path("rotated/report.html")));
  // The last step is applied, its gradients being finite, and carries the weights out of range.
  expect_refused(run(tiny_.train("last",
                                 "method=full learning_rate=1e39 warmup_steps=0 max_steps=1 "
                                 "save_steps=1") +
                     kErrorsOnly),
                 6, {"is no longer finite"});
  EXPECT_FALSE(fs::exists(tiny_.path("last/model.safetensors")));
  EXPECT_FALSE(fs::exists(tiny_.path("last/checkpoint-1")));

  const fs::path weights = make_model() / "model.safetensors";
  std::string bytes = read_text(weights);
  const float infinite = std::numeric_limits<float>::infinity();
  for (size_t at = bytes.size() - 4096; at < bytes.size(); at += sizeof infinite) {
    std::memcpy(bytes.data() + at, &infinite, sizeof infinite);
  }
  write_text_atomic(weights, bytes);
  const std::string eval_data = " eval_data=" + tiny_.eval_data();
  expect_refused(run(tiny_.train("inf", use_model() + eval_data) + kErrorsOnly), 6,
                 {"not finite", "weights are damaged"});
  EXPECT_FALSE(fs::exists(tiny_.path("inf/adapter_model.safetensors")));
  // The first step's loss is that of the model as it came: no learning rate has a part in it.
  expect_refused(run(tiny_.train("first", use_model() + " report_samples=0") + kErrorsOnly), 6,
                 {"step 1: ", "not finite", "weights are damaged"});
  expect_refused(run("eval " + tiny_.settings(use_model()) + kErrorsOnly), 6, {"not finite"});
}

TEST_F(SlowBadInput, Checkpoints) {
  const std::string saving = "max_steps=4 save_steps=2 ";
  tiny_.must_train("out", saving);
  tiny_.lose_result("out");
  const fs::path state = tiny_.path("out/checkpoint-4/state.safetensors");
  std::string bytes = read_text(state);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  write_text_atomic(state, bytes);
  expect_unchanged(saving, 5,
                   {"checkpoint-4", "state.safetensors is corrupt: checksum mismatch",
                    "checkpoint-2 continues from there"});
  fs::rename(tiny_.path("out/checkpoint-4/recipe.yaml"), tiny_.path("recipe"));
  expect_unchanged(saving, 5,
                   {"checkpoint-4 has no recipe.yaml", "checkpoint-2 continues from there"});
  tiny_.file("out/checkpoint-4/recipe.yaml", "");
  expect_unchanged(
      saving, 5,
      {"checkpoint-4/recipe.yaml is damaged: it is empty", "checkpoint-2 continues from there"});
  // One that cannot be looked at may be whole.
  fs::remove(state);
  fs::create_symlink(state, state);
  const Outcome unreadable = run(tiny_.train("out", saving) + kErrorsOnly);
  expect_refused(unreadable, 5, {"state.safetensors: ", "hint: see that it can be read"});
  EXPECT_EQ(unreadable.out.find("starts over"), std::string::npos) << unreadable.out;
  // Without it, the one before serves.
  fs::remove_all(tiny_.path("out/checkpoint-4"));
  tiny_.must_train("out", saving);
}

// What the hint says goes on, where a result is there, too.
TEST_F(SlowBadInput, TheNewestCheckpointOfAFinishedRun) {
  const std::string saving = "save_steps=2 save_total_limit=3 ";
  tiny_.must_train("out", saving + "max_steps=4");
  const fs::path state = tiny_.path("out/checkpoint-4/state.safetensors");
  std::string bytes = read_text(state);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  write_text_atomic(state, bytes);
  const std::string longer = saving + "max_steps=6 ";
  const std::string way_out =
      "resume=" + tiny_.path("out/checkpoint-2").string() + " overwrite=true";
  expect_unchanged(longer, 5,
                   {"state.safetensors is corrupt: checksum mismatch",
                    "hint: " + way_out + " continues from there; "});
  fs::rename(tiny_.path("out/checkpoint-4/recipe.yaml"), tiny_.path("recipe"));
  expect_unchanged(
      longer, 5,
      {"checkpoint-4 has no recipe.yaml", "hint: " + way_out + " continues from there; "});
  tiny_.must_train("out", longer + way_out);
  EXPECT_EQ(tiny_.events("out", "end").back()["step"], 6);
}

// Masters in files are bound to their checkpoint, byte for byte.
TEST_F(SlowBadInput, Masters) {
  const std::string saving =
      "method=rotary master=mmap rotation_groups=matrix active_params=50% max_steps=4 "
      "save_steps=2 ";
  tiny_.must_train("out", saving);
  tiny_.lose_result("out");
  tiny_.must_train("other", saving + "seed=2");
  // By the name that checkpoint.json gives a weight's file.
  const auto file_of = [&](const char* output, const std::string& name) -> fs::path {
    const fs::path checkpoint = tiny_.path(output) / "checkpoint-4";
    const json names = json::parse(read_text(checkpoint / "checkpoint.json"))["masters"];
    for (const auto& [weight, entry] : names.items()) {
      if (weight.find(name) == std::string::npos) continue;
      return checkpoint / "masters" / entry["file"].get<std::string>();
    }
    return {};
  };
  // Three weights of one shape.
  const fs::path first = file_of("out", "q_proj");
  const fs::path second = file_of("out", "o_proj");
  const fs::path other = file_of("other", "q_proj");
  ASSERT_FALSE(first.empty() || second.empty() || other.empty());
  const std::string bytes = read_text(first);
  const auto expect_damaged = [&](const std::string& content, const std::string& words) {
    write_text_atomic(first, content);
    expect_unchanged(saving, 5, {"checkpoint-4", "q_proj", words});
    write_text_atomic(first, bytes);
  };
  std::string flipped = bytes;
  flipped[bytes.size() / 3] = static_cast<char>(flipped[bytes.size() / 3] ^ 16);
  expect_damaged(flipped, "is corrupt: checksum mismatch");
  expect_damaged(read_text(second), "is corrupt: checksum mismatch");
  expect_damaged(read_text(other), "is corrupt: checksum mismatch");
  expect_damaged(bytes.substr(0, bytes.size() / 2), "missing, or of another shape");
  expect_damaged("", "missing, or of another shape");
  fs::remove(first);
  expect_unchanged(saving, 5, {"checkpoint-4", first.filename().string()});
  write_text_atomic(first, bytes);
  expect_unchanged(saving + "master_dtype=bf16", 5,
                   {"checkpoint-4", "missing, or of another shape or type"});
  expect_unchanged(saving + "rotation_groups=block master=ram", 5, {"checkpoint-4"});
  tiny_.must_train("out", saving);
}

TEST_F(SlowBadInput, OutputDirectories) {
  const fs::path model = make_model();
  const auto before = contents(model);
  expect_refused(run(tiny_.train("model", use_model()) + kErrorsOnly), 2, {"is the model itself"});
  EXPECT_TRUE(contents(model) == before);

  // Files of others stay; those that a run would replace keep it from running.
  constexpr const char* kOthers[] = {"out", "out/result", "out/result.part", "out/result.old",
                                     "out/masters"};
  for (const char* name : kOthers) {
    fs::create_directories(tiny_.path(name));
    tiny_.file(std::string(name) + "/mine.txt", "mine");
  }
  tiny_.must_train("out", "max_steps=2 save_steps=1");
  tiny_.must_train("out", "method=rotary master=mmap active_params=60% max_steps=2 overwrite=true");
  for (const char* name : kOthers) {
    EXPECT_EQ(tiny_.text(std::string(name) + "/mine.txt"), "mine");
  }
}

// Runs with files limited to so many blocks of 512 bytes.
Outcome run_limited(int64_t blocks, const std::string& arguments) {
  const std::string script = "trap '' XFSZ; ulimit -f " + std::to_string(blocks) + "; exec " +
                             std::string(kProgram) + " " + arguments + " 2>&1 >/dev/null";
  return run_shell(script);
}

void expect_no_leftovers(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    EXPECT_FALSE(entry.path().string().ends_with("part")) << entry.path();
    EXPECT_FALSE(entry.path().filename().string().starts_with(".jackscrew")) << entry.path();
  }
}

// A checkpoint of the whole model takes 420 KB, the model 140 KB.
TEST_F(SlowBadInput, WritesThatFail) {
  const std::string saving = "method=full max_steps=4 save_steps=2 ";
  tiny_.must_train("whole", saving);
  tiny_.must_train("out", saving);
  tiny_.lose_result("out");
  fs::remove_all(tiny_.path("out/checkpoint-4"));
  const auto first = contents(tiny_.path("out/checkpoint-2"));
  // Without the checkpoint the run continues to its result.
  const Outcome unsaved = run_limited(600, tiny_.train("out", saving));
  EXPECT_EQ(unsaved.exit_code, 0) << unsaved.out;
  for (const char* words : {"warning: checkpoint-4 is not written: cannot write",
                            "checkpoint-4.part/state.safetensors: File too large\n"}) {
    EXPECT_NE(unsaved.out.find(words), std::string::npos) << unsaved.out;
  }
  EXPECT_TRUE(contents(tiny_.path("out/checkpoint-2")) == first);
  expect_no_leftovers(tiny_.path("out"));
  EXPECT_FALSE(fs::exists(tiny_.path("out/checkpoint-4")));
  tiny_.must_train("out", saving);
}

TEST_F(SlowBadInput, FullDisk) {
  const fs::path disk = tiny_.path("disk");
  fs::create_directories(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=700k") != 0) {
    GTEST_SKIP() << "no right to mount a small disk";
  }
  const std::string saving = "method=full max_steps=6 save_steps=2 ";
  // Room for one checkpoint and the result, not for two: a run ends without.
  const Outcome full = run(tiny_.train("disk/out", saving) + kErrorsOnly);
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_NE(full.out.find("checkpoint-4.part/"), std::string::npos) << full.out;
  EXPECT_NE(full.out.find("No space left on device\n"), std::string::npos) << full.out;
  EXPECT_NE(full.out.find("jackscrew: warning: the run may write"), std::string::npos) << full.out;
  EXPECT_TRUE(fs::exists(disk / "out/checkpoint-2/checkpoint.json"));
  expect_no_leftovers(disk / "out");
  // The result is as if there had always been enough room.
  tiny_.must_train("whole", saving);
  EXPECT_TRUE(tiny_.text("disk/out/model.safetensors") == tiny_.text("whole/model.safetensors"));
  ::umount(disk.c_str());
}

TEST_F(SlowBadInput, MastersOnAFullDisk) {
  const fs::path disk = tiny_.path("disk");
  fs::create_directories(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=80k") != 0) {
    GTEST_SKIP() << "no right to mount a small disk";
  }
  const Outcome full =
      run(tiny_.train("disk/out", "method=rotary master=mmap active_params=60% max_steps=2") +
          kErrorsOnly);
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_NE(full.out.find("disk/out/.jackscrew-masters"), std::string::npos) << full.out;
  EXPECT_NE(full.out.find("master=ram"), std::string::npos) << full.out;
  EXPECT_FALSE(fs::exists(disk / "out/.jackscrew-masters"));
  ::umount(disk.c_str());
}

}  // namespace
}  // namespace jackscrew
