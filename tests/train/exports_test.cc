// Models that train leaves beside its result: those that merge and export write.
#include "train/run_exports.h"

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/gguf.h"
#include "report/event_log.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/errors.h"
#include "tests/support/ranks.h"
#include "tests/support/small_disk.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

class SlowExports : public ::testing::Test {
 protected:
  SlowExports() : tiny_("exports") {
    tiny_.must_train("base", "method=full max_steps=1 learning_rate=1e-2");
  }

  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  // Of a run over the base.
  std::string over_base(const std::string& more) const {
    return "init=pretrained tokenizer=auto model=" + path("base") + " max_steps=2 " + more;
  }
  std::string lora(const std::string& more) const {
    return over_base("method=lora lora_rank=2 learning_rate=2e-2 " + more);
  }
  std::string run_text(const std::string& output, const std::string& settings) const {
    const Outcome outcome = run(tiny_.train(output, settings) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out;
  }
  void must(const std::string& command) const {
    const Outcome outcome = run(command + " threads=1 --quiet 2>&1");
    ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.out;
  }
  bool exists(const std::string& name) const { return fs::exists(tiny_.path(name)); }

  TinyRun tiny_;
};

TEST_F(SlowExports, AreWhatMergeWrites) {
  run_text("run", lora("export=gguf:q4_k_m,hf:nf4,gguf"));
  const std::string merge = fmt::format("merge model={} adapter={} ", path("base"), path("run"));
  must(merge + "storage=q4_k_m output=" + path("model-q4_k_m.gguf"));
  must(merge + "storage=keep output=" + path("model.gguf"));
  must(merge + "storage=nf4 output_dir=" + path("model-nf4"));
  for (const std::string name : {"model-q4_k_m.gguf", "model.gguf"}) {
    EXPECT_TRUE(tiny_.text("run/exports/" + name) == tiny_.text(name)) << name;
  }
  EXPECT_EQ(contents(path("run/exports/model-nf4")), contents(path("model-nf4")));
  EXPECT_EQ(GgufFile(path("run/exports/model-q4_k_m.gguf")).integer("general.file_type"), 15);
}

TEST_F(SlowExports, AreWhatExportWritesOfAModel) {
  run_text("run", over_base("method=full storage=bf16 export=gguf:q8_0,hf:f32"));
  must(fmt::format("export model={} storage=q8_0 output={}", path("run"), path("m.gguf")));
  must(fmt::format("export model={} storage=f32 output_dir={}", path("run"), path("m")));
  EXPECT_TRUE(tiny_.text("run/exports/model-q8_0.gguf") == tiny_.text("m.gguf"));
  EXPECT_EQ(contents(path("run/exports/model-f32")), contents(path("m")));
}

TEST_F(SlowExports, AFinishedRunWritesWhatIsWantedSince) {
  run_text("run", lora(""));
  const std::string log = tiny_.text("run/train_log.jsonl");
  EXPECT_FALSE(exists("run/exports"));
  const std::string said = run_text("run", lora("export=gguf:q8_0"));
  EXPECT_NE(said.find("finished  "), std::string::npos) << said;
  EXPECT_NE(said.find("export    " + path("run/exports/model-q8_0.gguf")), std::string::npos)
      << said;
  EXPECT_EQ(said.find("nothing to do"), std::string::npos) << said;
  const std::string file = tiny_.text("run/exports/model-q8_0.gguf");
  // Another one leaves the first as it is, and then nothing is left to do.
  run_text("run", lora("export=gguf:q8_0,gguf:q4_0"));
  EXPECT_TRUE(exists("run/exports/model-q4_0.gguf"));
  EXPECT_TRUE(file == tiny_.text("run/exports/model-q8_0.gguf"));
  EXPECT_NE(run_text("run", lora("export=gguf:q8_0")).find("nothing to do"), std::string::npos);
  // The log has gained the two exports, and the report names them.
  const auto events = read_events(tiny_.path("run/train_log.jsonl"));
  EXPECT_TRUE(tiny_.text("run/train_log.jsonl").starts_with(log));
  ASSERT_GE(events.size(), 2u);
  for (const auto& [event, name] : {std::pair{events.size() - 2, std::string("q8_0")},
                                    std::pair{events.size() - 1, std::string("q4_0")}}) {
    EXPECT_EQ(events[event]["event"], "export");
    EXPECT_EQ(events[event]["step"], 2);
    EXPECT_EQ(events[event]["format"], "gguf:" + name);
    EXPECT_EQ(events[event]["bytes"],
              fs::file_size(tiny_.path("run/exports/model-" + name + ".gguf")));
    EXPECT_NE(tiny_.text("run/report.html").find("model-" + name + ".gguf"), std::string::npos);
  }
}

// As where the system refused to write it.
TEST_F(SlowExports, ThatALogLacksAreAddedByTheFinishedRun) {
  const std::string settings = lora("export=gguf:q8_0,hf:f32");
  run_text("run", settings);
  const auto exports = [&] {
    std::vector<nlohmann::json> found;
    for (auto event : read_events(tiny_.path("run/train_log.jsonl"))) {
      event.erase("time");
      if (event["event"] == "export") found.push_back(event);
    }
    return found;
  };
  const auto before = exports();
  ASSERT_EQ(before.size(), 2u);
  const std::string whole = tiny_.text("run/train_log.jsonl");
  const std::string log = whole.substr(0, whole.find(R"({"event": "export")"));
  ASSERT_LT(log.size(), whole.size());
  tiny_.file("run/train_log.jsonl", log);
  tiny_.file("run/report.html", "");
  run_text("run", settings);
  EXPECT_EQ(exports(), before);
  EXPECT_NE(tiny_.text("run/report.html").find("model-q8_0.gguf"), std::string::npos);
  const std::string added = tiny_.text("run/train_log.jsonl");
  EXPECT_TRUE(added.starts_with(log));
  run_text("run", settings);
  EXPECT_EQ(tiny_.text("run/train_log.jsonl"), added);
}

// The warning names the file that is not written.
TEST(LogExport, WarnsOfALogThatCannotBeWritten) {
  const TemporaryDirectory directory("jackscrew_log_export");
  fs::create_directory(directory.path() / kLogName);
  ::testing::internal::CaptureStderr();
  log_export(directory.path(), {"gguf", directory.path() / "exports/model.gguf", 1, {}});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the log's line of the export is not written: "), std::string::npos) << said;
}

// What stands there is always of the result beside it.
TEST_F(SlowExports, GoWithTheirResult) {
  const std::string settings = lora("lr_scheduler_type=constant save_steps=2 ");
  run_text("run", settings + "export=gguf:f32");
  const std::string first = tiny_.text("run/exports/model-f32.gguf");
  run_text("run", settings + "max_steps=3 export=gguf:f32");
  EXPECT_FALSE(first == tiny_.text("run/exports/model-f32.gguf"));
  run_text("run", settings + "max_steps=4");
  EXPECT_FALSE(exists("run/exports"));
}

// They may be all that is left of it.
TEST_F(SlowExports, AreKeptWhereTheSameResultIsWrittenAgain) {
  for (const char* saving : {"save_steps=0 ", "save_steps=2 "}) {
    const std::string settings = lora(std::string("lr_scheduler_type=constant ") + saving);
    run_text("run", settings + "overwrite=true export=gguf:f32");
    const std::string exported = tiny_.text("run/exports/model-f32.gguf");
    tiny_.lose_result("run");
    const std::string said = run_text("run", settings);
    EXPECT_EQ(said.find("removed "), std::string::npos) << said;
    EXPECT_TRUE(exists("run/adapter_model.safetensors"));
    EXPECT_TRUE(exists("run/exports/model-f32.gguf") &&
                exported == tiny_.text("run/exports/model-f32.gguf"));
    const std::string another = run_text("run", settings + "seed=3 overwrite=true");
    EXPECT_NE(another.find("removed " + path("run/exports/model-f32.gguf") +
                           ": a model of the earlier result"),
              std::string::npos)
        << another;
  }
}

TEST_F(SlowExports, AreNotReplacedWhereTheyAreAllThatIsLeft) {
  run_text("run", lora("export=gguf:f32"));
  tiny_.lose_result("run");
  // As if the run had been killed while it wrote its result again.
  const std::string log = tiny_.text("run/train_log.jsonl");
  tiny_.file("run/train_log.jsonl", log.substr(0, log.find('\n') + 1));
  const auto before = contents(path("run"));
  expect_refused(run(tiny_.train("run", lora("seed=3")) + kErrorsOnly), 2,
                 {"has exports of a result whose weights are gone: seed was "});
  EXPECT_TRUE(contents(path("run")) == before);
}

// What others have put there stays, and a model that would replace it is not written.
TEST_F(SlowExports, LeaveFilesOfOthers) {
  const std::string settings = lora("lr_scheduler_type=constant save_steps=2 ");
  run_text("run", settings + "export=gguf:q8_0,hf:f32");
  fs::create_directories(tiny_.path("run/exports/mine"));
  for (const char* name : {"mine/notes.txt", "model-mine.gguf", "model-f32/notes.txt"}) {
    tiny_.file(std::string("run/exports/") + name, "mine");
  }
  const Outcome refused =
      run(tiny_.train("run", settings + "max_steps=3 export=gguf:q8_0,hf:f32") + " 2>&1");
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_NE(refused.out.find("model-f32 holds notes.txt, which is not part of a model"),
            std::string::npos)
      << refused.out;
  for (const char* name : {"mine/notes.txt", "model-mine.gguf", "model-f32/notes.txt"}) {
    EXPECT_EQ(tiny_.text(std::string("run/exports/") + name), "mine");
  }
  fs::remove(tiny_.path("run/exports/model-f32/notes.txt"));
  run_text("run", settings + "max_steps=3 export=gguf:q8_0,hf:f32");
  EXPECT_TRUE(exists("run/exports/model-f32/config.json"));
  run_text("run", settings + "max_steps=4");
  EXPECT_FALSE(exists("run/exports/model-f32") || exists("run/exports/model-q8_0.gguf"));
  EXPECT_EQ(tiny_.text("run/exports/mine/notes.txt"), "mine");
}

// The steps are not lost over it, nor is the result that stands there.
TEST_F(SlowExports, ThatCannotBeRemovedLeaveACheckpoint) {
  run_text("run", lora("save_steps=0"));
  const std::string first = tiny_.text("run/adapter_model.safetensors");
  const std::string anew = lora("save_steps=0 seed=3 ");
  {
    // A directory that something is mounted at cannot be removed.
    const SmallDisk mounted(tiny_.path("run/exports/model-q8_0.gguf.jackscrew-part"), "1m");
    SKIP_UNLESS_MOUNTED(mounted);
    const Outcome refused = run(tiny_.train("run", anew + "overwrite=true") + " 2>&1");
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    for (const char* words :
         {"the result is not written: cannot remove ", "exports/model-q8_0.gguf",
          "run the same command again without overwrite=true to continue"}) {
      EXPECT_NE(refused.out.find(words), std::string::npos) << refused.out;
    }
    EXPECT_TRUE(exists("run/checkpoint-2"));
    EXPECT_TRUE(first == tiny_.text("run/adapter_model.safetensors"));
  }
  run_text("run", anew);
  run_text("whole", anew);
  EXPECT_TRUE(tiny_.text("whole/adapter_model.safetensors") ==
              tiny_.text("run/adapter_model.safetensors"));
  EXPECT_FALSE(exists("run/exports"));
}

TEST_F(SlowExports, AreRefusedBeforeTraining) {
  const auto refused = [&](const std::string& settings, int code,
                           const std::vector<std::string>& says) {
    expect_refused(run(tiny_.train("refused", settings) + kErrorsOnly), code, says);
    EXPECT_FALSE(exists("refused")) << settings;
  };
  refused(lora("export=gguf:q9_z"), 2, {"export has \"gguf:q9_z\"", "gguf:q4_k_m"});
  refused(lora("export=hf,hf:keep"), 2, {"export has \"hf:keep\" twice"});
  refused(lora("export=onnx"), 2, {"export has \"onnx\"", "expected hf or gguf"});
  refused(lora("export=bnb,hf:nf4"), 2, {"export has \"hf:nf4\" twice"});
  refused(lora("export=hf:q4_k_m"), 2,
          {"export=hf:q4_k_m: storage=q4_k_m cannot be written to a Hugging Face directory"});
  refused(lora("export=gguf:nf4"), 2, {"storage=nf4 cannot be written to a GGUF file"});
  refused(over_base("method=prompt export=gguf"), 2,
          {"export=gguf: a soft prompt is not part of a weight",
           "hint: leave export out: generate, chat and eval take the result as adapter=DIR"});
  refused("method=lora export=gguf", 2, {"adapter of random weights"});
  const std::string dynamic = tiny_.file("dynamic.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
      "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
      "bos_token_id": 256, "eos_token_id": 257})");
  refused("method=full export=gguf model=" + dynamic, 5,
          {"export=gguf: GGUF has no place for rope scaling \"dynamic\"", "in a run export=hf"});
}

TEST_F(SlowExports, OfSeveralRanksAreThoseOfOne) {
  const auto train_in = [&](const std::string& output, int ranks) {
    train_on_ranks(
        tiny_.settings(lora("data_parallel=2 export=gguf:q8_0 output_dir=" + path(output))), ranks);
    return tiny_.text(output + "/exports/model-q8_0.gguf");
  };
  EXPECT_TRUE(train_in("two", 2) == train_in("one", 1));
}

// The result is whole, and the message has the command that does what was left.
TEST_F(SlowExports, CanBeInterruptedAndRepeated) {
  run_text("run", lora(""));
  const Recipe recipe = make_recipe(settings_of(
      tiny_.settings(lora("overwrite=true export=gguf:q8_0,hf:f32 output_dir=" + path("run")))));
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  ProgressStyle style;
  style.quiet = true;
  style.check = [] { throw Error(ErrorKind::interrupted, "stopped"); };
  const auto interrupted = [&] {
    write_exports(recipe, files, path("run"), style, [](const WrittenExport&) {});
  };
  std::string hint;
  try {
    interrupted();
    FAIL() << "not interrupted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::interrupted);
    EXPECT_NE(std::string(error.what()).find("stopped; the result is complete in " + path("run")),
              std::string::npos)
        << error.what();
    hint = error.hint();
  }
  EXPECT_TRUE(fs::is_empty(tiny_.path("run/exports")));
  EXPECT_TRUE(lacks_exports(recipe, path("run")));
  const std::string words = "run the same command again without overwrite=true, or: jackscrew ";
  ASSERT_NE(hint.find(words), std::string::npos) << hint;
  must(hint.substr(hint.find(words) + words.size()));
  EXPECT_TRUE(exists("run/exports/model-q8_0.gguf"));
  style.check = {};
  std::vector<fs::path> paths;
  write_exports(recipe, files, path("run"), style,
                [&](const WrittenExport& written) { paths.push_back(written.path); });
  ASSERT_EQ(paths.size(), 1u) << "what was there already is not written again";
  EXPECT_EQ(paths[0].filename(), "model-f32");
  EXPECT_FALSE(lacks_exports(recipe, path("run")));
}

// Nor is it whole, then.
TEST_F(SlowExports, OfADamagedResultDoNotCallItComplete) {
  run_text("run", lora(""));
  fs::resize_file(tiny_.path("run/adapter_model.safetensors"), 1000);
  const Outcome refused = run(tiny_.train("run", lora("export=gguf:f32")) + kErrorsOnly);
  EXPECT_EQ(refused.exit_code, 5) << refused.out;
  for (const char* words : {"export=gguf:f32: ", "adapter_model.safetensors"}) {
    EXPECT_NE(refused.out.find(words), std::string::npos) << refused.out;
  }
  EXPECT_EQ(refused.out.find("complete"), std::string::npos) << refused.out;
}

TEST_F(SlowExports, WithoutAFileThatCannotBeReadLeaveACompleteResult) {
  run_text("run", lora(""));
  const Recipe recipe =
      make_recipe(settings_of(tiny_.settings(lora("export=gguf:q8_0 output_dir=" + path("run")))));
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  ProgressStyle style;
  style.quiet = true;
  style.check = [] { throw Unreadable(ErrorKind::model, "cannot read it"); };
  expect_message(ErrorKind::model, "cannot read it; the result is complete in " + path("run"), [&] {
    write_exports(recipe, files, path("run"), style, [](const WrittenExport&) {});
  });
}

// Neither command that would write it could: the values stay what they are.
TEST_F(SlowExports, OfAValueBeyondTheirStorageNameOnesThatHoldIt) {
  run_text("run", over_base("method=full"));
  std::string file = tiny_.text("run/model.safetensors");
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  const auto header = nlohmann::json::parse(file.substr(sizeof(size), size));
  const auto& weight = header["model.layers.0.mlp.down_proj.weight"];
  ASSERT_EQ(weight["dtype"], "F32");
  const auto set = [&](float value) {
    const size_t begin = weight["data_offsets"][0].get<size_t>();
    std::memcpy(file.data() + sizeof(size) + size + begin, &value, sizeof(value));
    tiny_.file("run/model.safetensors", file);
  };
  const auto hint = [&](const std::string& exports) {
    const Recipe recipe = make_recipe(settings_of(
        tiny_.settings(over_base("method=full export=" + exports + " output_dir=" + path("run")))));
    const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
    ProgressStyle style;
    style.quiet = true;
    std::string said;
    try {
      write_exports(recipe, files, path("run"), style, [](const WrittenExport&) {});
    } catch (const Error& error) {
      said = error.hint();
    }
    return said;
  };
  set(1e5f);
  EXPECT_EQ(
      hint("gguf:q8_0"),
      "run the same command again, with gguf:bf16 or gguf:f32 in place of gguf:q8_0 in export");
  EXPECT_EQ(hint("hf:f16"),
            "run the same command again, with hf:bf16 or hf:f32 in place of hf:f16 in export");
  EXPECT_EQ(hint("gguf:bf16,hf:f32"), "");
  set(std::numeric_limits<float>::infinity());
  EXPECT_EQ(hint("gguf:q8_0"), "its training went wrong, or the file is damaged");
}

}  // namespace
}  // namespace jackscrew
