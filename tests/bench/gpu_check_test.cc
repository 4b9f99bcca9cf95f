// bench/gpu_check.sh with stubs in place of the programs: whatever one of them does, the records of
// the others are there, and are JSON.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_program.h"

namespace jackscrew {
namespace {

using Json = nlohmann::json;

class SlowGpuCheck : public ::testing::Test {
 protected:
  SlowGpuCheck() {
    fs::create_directories(path("bin"));
    stub("jackscrew", "echo 'cuda:0: a \"stub\" \\ of sm_90'; echo 'cuDNN (of stubs): none'");
    stub("test_gpu",
         "case $* in *list*) printf 'GpuParity.\\n  Gemm\\n  Attention\\nGpuRun.\\n  Works\\n'; "
         "esac");
    stub("step_bench", "echo '{\"bench\": \"step\", \"tokens_per_second\": 1.5e3}'");
  }

  fs::path path(const std::string& name) const { return directory_.path() / name; }

  void stub(const std::string& program, const std::string& body) {
    const fs::path file = directory_.file("bin/" + program, "#!/bin/bash\n" + body + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }

  std::string command(int seconds) const {
    return fmt::format("PATH=\"{}:$PATH\" VIRTUAL_ENV=/ {} --seconds={} {} {} >{} 2>&1",
                       path("bin").string(),
                       (fs::path(kTestData).parent_path() / "bench/gpu_check.sh").string(), seconds,
                       path("bin").string(), path("report").string(), path("shown").string());
  }

  // By name; throws where a complete line is not JSON.
  std::map<std::string, Json> records() const {
    std::map<std::string, Json> out;
    std::istringstream lines(read_text(path("report") / "gpu-check.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      if (lines.eof()) break;  // without an end
      const Json record = Json::parse(line);
      out[record["name"]] = record;
    }
    return out;
  }

  TemporaryDirectory directory_{"jackscrew_gpu_check"};
};

TEST_F(SlowGpuCheck, KeepsEveryRecordWhateverAPartDoes) {
  stub("test_gpu",
       "case $* in\n"
       "*list*) printf 'GpuParity.\\n  Gemm\\n  Attention\\nGpuRun.\\n  Works\\n' ;;\n"
       "*GpuParity.\\*) echo before; echo 'a \"quote\"\ta tab \\ \xC3\xA4' >&2; kill -SEGV $$ ;;\n"
       "*Attention) trap '' TERM; sleep 60 & while :; do wait; done ;;\n"
       "*GpuRun*) echo '[  FAILED  ] one'; exit 1 ;;\n"
       "esac");
  stub("step_bench",
       "case $* in\n"
       "*0.5b*) echo '{\"bench\": \"step\", \"parts\": {\"a\": [1, -2.5e-3, \"}\"]}}'; echo text "
       ";;\n"
       "*1.5b*) printf '{\"first\": 1}\\n{\"bad\": nan}\\n{\"bad\": 1 2}\\n{\"half\": 1'; "
       "kill -KILL $$ ;;\n"
       "*3b*) echo 'needs 90 GiB' >&2; exit 3 ;;\n"
       "*smollm2*) exit 0 ;;\n"
       "*copies*) exit 127 ;;\n"
       "esac");
  // One that no signal ends: `timeout` itself does not come back.
  stub("timeout",
       "case $* in *micro_batch_size=1\\ *) trap '' TERM; exec sleep 20 ;; esac\n"
       "exec /usr/bin/timeout \"$@\"");
  const Outcome outcome = run_shell(command(60));
  EXPECT_EQ(outcome.exit_code, 1) << read_text(path("shown"));
  const auto all = records();
  const auto status = [&](const std::string& name) {
    return all.contains(name) ? all.at(name)["status"].get<std::string>() : "absent";
  };
  EXPECT_EQ(status("doctor"), "ok");
  EXPECT_EQ(status("tests: GpuParity"), "crashed");
  EXPECT_EQ(all.at("tests: GpuParity")["exit"], 139);
  EXPECT_EQ(all.at("tests: GpuParity")["output"], "before\na \"quote\"\ta tab \\ ??");
  EXPECT_EQ(status("test: GpuParity.Gemm"), "ok");
  EXPECT_EQ(status("test: GpuParity.Attention"), "timed out");
  EXPECT_EQ(status("tests: GpuRun"), "failed");
  EXPECT_EQ(status("test: GpuRun.Works"), "failed");
  EXPECT_EQ(status("Qwen2.5-0.5B, full"), "ok");
  EXPECT_EQ(all.at("Qwen2.5-0.5B, full")["results"],
            Json::parse(R"([{"bench": "step", "parts": {"a": [1, -2.5e-3, "}"]}}])"));
  EXPECT_EQ(all.at("Qwen2.5-0.5B, full")["output"], "text");
  EXPECT_EQ(status("Qwen2.5-1.5B, full"), "killed");
  EXPECT_EQ(all.at("Qwen2.5-1.5B, full")["results"], Json::parse(R"([{"first": 1}])"));
  EXPECT_EQ(status("Qwen2.5-3B, full, 8-bit AdamW"), "does not fit");
  EXPECT_EQ(status("Llama 7B, rotary, one sequence"), "does not end");
  EXPECT_TRUE(all.at("Llama 7B, rotary, one sequence")["exit"].is_null());
  EXPECT_EQ(status("SmolLM2-135M, full, f32"), "ok");
  for (const auto& [name, record] : all) {
    const bool ran = record["status"] != "skipped";  // what is not installed here
    EXPECT_TRUE(record[ran ? "seconds" : "reason"].is_primitive()) << name;
    EXPECT_FALSE(record[ran ? "seconds" : "reason"].is_null()) << name;
  }
}

TEST_F(SlowGpuCheck, EndsInItsTimeAndNamesWhatItSkipped) {
  for (const char* program : {"test_gpu", "step_bench"}) stub(program, "sleep 60");
  const Outcome outcome = run_shell(command(4));
  EXPECT_EQ(outcome.exit_code, 1);
  const auto all = records();
  const Json& last = all.at("SmolLM2-135M, full, f32");
  EXPECT_EQ(last["status"], "skipped");
  EXPECT_EQ(last["reason"].get<std::string>().rfind("no time left", 0), 0u) << last;
}

// What the script itself has to bear: a signal that it sees, and one that it does not see.
TEST_F(SlowGpuCheck, ASignalCostsOnePart) {
  stub("step_bench", "touch " + path("reached").string() + "; sleep 60");
  for (const char* signal : {"TERM", "KILL"}) {
    SCOPED_TRACE(signal);
    fs::remove(path("reached"));
    const std::string script = fmt::format(
        "{} & script=$!; for i in $(seq 600); do [ -e {} ] && break; sleep 0.1; done; "
        "kill -{} $script; wait $script; echo $?",
        command(300), path("reached").string(), signal);
    const bool is_seen = std::string(signal) == "TERM";
    EXPECT_EQ(run_shell(script).out, is_seen ? "130\n" : "137\n");
    const auto all = records();
    EXPECT_EQ(all.at("tests: GpuParity")["status"], "ok");
    EXPECT_EQ(all.contains("Qwen2.5-1.5B, full"), is_seen);
    if (!is_seen) continue;
    EXPECT_EQ(all.at("Qwen2.5-1.5B, full")["status"], "stopped");
    EXPECT_EQ(all.at("SmolLM2-135M, full, f32")["reason"], "stopped by SIGTERM");
  }
}

TEST_F(SlowGpuCheck, SaysWhatAStepIsMadeOf) {
  stub("step_bench",
       "echo '{\"bench\": \"step\", \"tokens_per_second\": 1.5e3, \"step_seconds\": 0.2, "
       "\"graphs\": {\"recorded\": 2, \"refused\": 1}, \"parts_seconds\": 0.21, \"parts\": "
       "{\"linear dx\": {\"seconds\": 0.042, \"gflop\": 1}, "
       "\"linear forward\": {\"seconds\": 0.105, \"gflop\": 1}}}'");
  run_shell(command(60));
  const std::string said = read_text(path("report") / "gpu-check.txt");
  for (const char* line :
       {"    a step takes 200.0 ms, its parts by events 210.0 ms (105%)\n",
        "    50.0% linear forward, 20.0% linear dx\n", "    graphs: recorded: 2, refused: 1\n"}) {
    EXPECT_NE(said.find(line), std::string::npos) << line << said;
  }
}

TEST_F(SlowGpuCheck, FindsNoGpuWithoutFailing) {
  stub("jackscrew", "echo 'CUDA driver: there is none'");
  EXPECT_EQ(run_shell(command(60)).exit_code, 0);
  EXPECT_EQ(records().at("all that follows")["status"], "skipped");
}

}  // namespace
}  // namespace jackscrew
