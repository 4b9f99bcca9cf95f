// Files that are cut short while they are read, that may not grow, and that are none.
#include <sys/stat.h>

#include <fstream>

#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// Whether the process has a map of a file whose path ends so.
bool maps_file(pid_t process, const std::string& end) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(end)) return true;
  }
  return false;
}

// Cuts a file short as soon as the program has it mapped; the program's exit code, and what it says
// in `said`.
int cut_when_mapped(const std::string& arguments, const fs::path& file, const fs::path& said) {
  Child child(arguments, said);
  const bool mapped = child.until([&] { return maps_file(child.pid(), file.string()); });
  EXPECT_TRUE(mapped) << file;
  child.signal(SIGSTOP);
  fs::resize_file(file, 0);
  child.signal(SIGCONT);
  return child.wait();
}

class SlowLostFiles : public ::testing::Test {
 protected:
  // `begin`: how the path of the file begins.
  void expect_named(const fs::path& begin) const {
    const std::string said = tiny_.text("said");
    EXPECT_NE(said.find("jackscrew: error: " + begin.string()), std::string::npos) << said;
    EXPECT_NE(said.find(": the file was cut short"), std::string::npos) << said;
  }

  // Cuts `weights` short while a run opens and loads `model`, whose they are.
  void expect_lost_while_loaded(const fs::path& model, const fs::path& weights) const {
    // Much to read between the moment when the model is opened and that when its weights are.
    std::string data;
    for (int i = 0; i < 40000; ++i) {
      data += TinyRun::record("Say " + std::to_string(i), "It is so.");
    }
    const std::string much = tiny_.file("much.jsonl", data);
    EXPECT_EQ(cut_when_mapped(tiny_.train("out", "max_steps=1 init=pretrained data=" + much +
                                                     " model=" + model.string()),
                              weights, tiny_.path("said")),
              5);
    expect_named(weights);
    EXPECT_FALSE(fs::exists(tiny_.path("out/adapter_model.safetensors")));
  }

  TinyRun tiny_{"lost_files"};
};

TEST_F(SlowLostFiles, AModelCutShortWhileItIsLoaded) {
  tiny_.must_train("model", "method=full max_steps=1 model=llama-9m");
  expect_lost_while_loaded(tiny_.path("model"), tiny_.path("model/model.safetensors"));
}

TEST_F(SlowLostFiles, AGgufFileCutShortWhileItIsLoaded) {
  tiny_.must_train("model", "method=full max_steps=1 model=llama-9m export=gguf:f32");
  const fs::path gguf = tiny_.path("model/exports/model-f32.gguf");
  expect_lost_while_loaded(gguf, gguf);
}

TEST_F(SlowLostFiles, AModelCutShortWhileItIsReadWhereItLies) {
  tiny_.must_train("model", "method=full max_steps=1");
  const fs::path weights = tiny_.path("model/model.safetensors");
  Child child(tiny_.train("out", "max_steps=100000 weights=mmap init=pretrained model=" +
                                     tiny_.path("model").string()),
              tiny_.path("said"));
  ASSERT_TRUE(child.until([&] {
    return fs::exists(tiny_.path("out/train_log.jsonl")) && !tiny_.events("out", "step").empty();
  }));
  child.signal(SIGSTOP);
  fs::resize_file(weights, 0);
  child.signal(SIGCONT);
  EXPECT_EQ(child.wait(), 5);
  expect_named(weights);
  EXPECT_FALSE(fs::exists(tiny_.path("out/adapter_model.safetensors")));
}

TEST_F(SlowLostFiles, MastersCutShortWhileTheyLearn) {
  const std::string settings =
      "method=rotary master=mmap active_params=60% steps_per_rotation=1 max_steps=100000 ";
  const fs::path masters = tiny_.path("out/.jackscrew-masters");
  Child child(tiny_.train("out", settings), tiny_.path("said"));
  ASSERT_TRUE(child.until([&] {
    return fs::exists(tiny_.path("out/train_log.jsonl")) && !tiny_.events("out", "step").empty();
  }));
  child.signal(SIGSTOP);
  for (const auto& file : fs::directory_iterator(masters)) {
    fs::resize_file(file.path(), 0);
  }
  child.signal(SIGCONT);
  EXPECT_EQ(child.wait(), 5);
  expect_named(masters);
  EXPECT_FALSE(fs::exists(tiny_.path("out/model.safetensors")));
}

TEST_F(SlowLostFiles, FilesThatMayNotGrowAreErrorsOfTheirName) {
  const auto limited = [&](int blocks, const std::string& arguments) {
    return run_shell("ulimit -f " + std::to_string(blocks) + "; exec " + std::string(kProgram) +
                     " " + arguments + kErrorsOnly);
  };
  // A checkpoint that may not be written ends no run.
  const Outcome whole = limited(600, tiny_.train("out", "method=full max_steps=4 save_steps=2"));
  EXPECT_EQ(whole.exit_code, 0) << whole.out;
  EXPECT_NE(whole.out.find("state.safetensors: File too large\n"), whole.out.npos) << whole.out;
  const Outcome none = limited(0, tiny_.train("none", "max_steps=1"));
  EXPECT_EQ(none.exit_code, 1) << none.out;
  for (const char* part : {"error: cannot write", "none/recipe.yaml", "ulimit -f"}) {
    EXPECT_NE(none.out.find(part), none.out.npos) << none.out;
  }
  // Room may come, a higher limit does not: nothing is waited for.
  const Outcome result = limited(100, tiny_.train("result", "method=full max_steps=2"));
  EXPECT_EQ(result.exit_code, 1) << result.out;
  for (const char* part : {"warning: the run may write a file of ", "the result is not written",
                           "File too large", "ulimit -f"}) {
    EXPECT_NE(result.out.find(part), result.out.npos) << result.out;
  }
  EXPECT_EQ(result.out.find("waiting"), result.out.npos) << result.out;
  // The stream of a calibration text is larger than the model of which it is.
  for (const char* command : {"export output=", "quantize group_size=32 output_dir="}) {
    const std::string output = tiny_.path("written").string();
    expect_refused(
        limited(100, command + output + " model=" + tiny_.path("out").string() + " --quiet"), 1,
        {output + " needs a file of ", "ulimit -f"});
    for (const auto& entry : fs::directory_iterator(tiny_.path(""))) {
      EXPECT_FALSE(entry.path().string().starts_with(output)) << entry.path();
    }
  }
  expect_refused(limited(1, "report " + tiny_.path("out").string()), 1, {"report.html"});
  for (const char* output : {"out", "none", "result"}) {
    for (const auto& entry : fs::recursive_directory_iterator(tiny_.path(output))) {
      EXPECT_FALSE(entry.path().string().ends_with("part")) << entry.path();
    }
  }
}

TEST(LostFiles, PipesAndDevicesAreNotWaitedFor) {
  const TemporaryDirectory directory("jackscrew_pipes");
  const auto pipe = [&](const std::string& name) {
    const std::string path = (directory.path() / name).string();
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    return path;
  };
  const std::string shape = "init=random tokenizer=bytes model=llama-9m ";
  const std::string out = " output_dir=" + (directory.path() / "out").string();
  const std::string data = pipe("data.jsonl");
  expect_refused(run("train " + shape + "data=" + data + out + kErrorsOnly), 4,
                 {data + " is a pipe, not a file"});
  for (const std::string& model : {pipe("model.gguf"), pipe("config.json"), pipe("other")}) {
    expect_refused(run("inspect " + model + kErrorsOnly), 5, {model + " is a pipe, not a file"});
  }
  expect_refused(run("inspect /dev/zero" + std::string(kErrorsOnly)), 5,
                 {"/dev/zero is a device, not a file"});
  fs::create_directory(directory.path() / "model");
  const std::string weights = pipe("model/model.safetensors");
  fs::copy_file(golden_model("mha_untied") + "/config.json",
                directory.path() / "model/config.json");
  expect_refused(run("inspect " + (directory.path() / "model").string() + kErrorsOnly), 5,
                 {weights + " is a pipe"});
}

}  // namespace
}  // namespace jackscrew
