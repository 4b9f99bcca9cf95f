// A limit of a control group that does not leave a run enough, and memory of which nothing is
// known, through the program.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "base/process_memory.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/sanitizer.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// A control group of version 1 or 2 for this test; `path` is empty where none can be made.
class Group {
 public:
  explicit Group(int64_t bytes) {
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                      std::pair("/sys/fs/cgroup", "memory.max")}) {
      if (!fs::exists(fs::path(root) / "cgroup.procs")) continue;
      path_ = fs::path(root) / ("jackscrew_test_" + std::to_string(::getpid()));
      std::error_code error;
      fs::create_directory(path_, error);
      std::ofstream file(path_ / limit);
      file << bytes << std::flush;
      if (!error && file) return;
      remove();
    }
  }
  ~Group() { remove(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const fs::path& path() const { return path_; }
  Outcome run_within(const std::string& arguments) const {
    return run_shell("echo $$ > " + (path_ / "cgroup.procs").string() + "; exec " +
                     std::string(kProgram) + " " + arguments);
  }

 private:
  void remove() {
    if (!path_.empty()) ::rmdir(path_.c_str());
    path_.clear();
  }

  fs::path path_;
};

TEST(SlowMemoryLimit, RefusesBeforeTheKernelKills) {
  const Group group(int64_t{120} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("memory_limit");
  const std::string large = tiny.train("out", "model=llama-60m method=full max_steps=1");
  for (const char* budget : {"", " device_memory=8GiB"}) {
    expect_refused(group.run_within(large + budget + kErrorsOnly), 3,
                   {"memory limit of 120.0 MiB", group.path().string()});
    EXPECT_FALSE(fs::exists(tiny.path("out/train_log.jsonl")));
  }
  const Outcome small = group.run_within(tiny.train("small", "max_steps=1") + " 2>&1");
  EXPECT_EQ(small.exit_code, 0) << small.out;
  EXPECT_NE(group.run_within("doctor").out.find("memory limit: 120.0 MiB"), std::string::npos);
}

// A run of very many tensors fits or is refused: the kernel does not kill it.
TEST(SlowMemoryLimit, CountsWhatEveryTensorTakes) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer takes memory of its own";
  const TinyRun tiny("many_tensors");
  const std::string deep = tiny.file("deep.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1000,
      "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257})");
  const auto exit_code = [&](int64_t mib) -> std::optional<int> {
    const Group group(mib << 20);
    if (group.path().empty()) return std::nullopt;
    const std::string settings = fmt::format(
        "model={} method=lora lora_rank=1 max_steps=1 sequence_len=32 report_samples=0", deep);
    return group.run_within(tiny.train(fmt::format("out{}", mib), settings) + " 2>&1").exit_code;
  };
  const std::optional<int> tight = exit_code(88);
  if (!tight) GTEST_SKIP() << "no right to make a control group";
  EXPECT_TRUE(*tight == 0 || *tight == 3) << *tight;
  EXPECT_EQ(exit_code(192), 0);
}

std::string log_of(int64_t steps) {
  std::string log;
  for (int64_t step = 1; step <= steps; ++step) {
    log += fmt::format(R"({{"event": "step", "step": {}, "time": {}.25, "loss": 1.5, )"
                       R"("grad_norm": 1.25, "learning_rate": 1e-05, "epoch": 0.5, "tokens": 64, )"
                       R"("tokens_per_second": 1000.5}})"
                       "\n",
                       step, 1796019232 + step);
  }
  return log;
}

// A limit that leaves a short run enough leaves a long one enough to be repeated and reported.
TEST(SlowMemoryLimit, ALongLogIsNotHeld) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const Group group(int64_t{120} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("long_log");
  tiny.must_train("out", "max_steps=1");
  tiny.file("out/train_log.jsonl", log_of(200000) + tiny.text("out/train_log.jsonl"));
  fs::remove(tiny.path("out/report.html"));
  const Outcome again = group.run_within(tiny.train("out", "max_steps=1") + " 2>&1");
  ASSERT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  EXPECT_NE(tiny.text("out/report.html").find("200000 of 1"), std::string::npos);
}

// Lists of what is in the data are looked at before they grow beyond the limit.
// The report holds five numbers of each logged step, and charts of them.
TEST(SlowMemoryLimit, ReportsNoMoreStepsThanFit) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("long_report");
  fs::create_directory(tiny.path("out"));
  tiny.file("out/train_log.jsonl", log_of(400000));
  const std::string report = "report " + tiny.path("out").string() + kErrorsOnly;
  {
    const Group tight(int64_t{24} << 20);
    if (tight.path().empty()) GTEST_SKIP() << "no right to make a control group";
    expect_refused(tight.run_within(report), 3, {"the report of more than", "jackscrew report"});
    EXPECT_FALSE(fs::exists(tiny.path("out/report.html")));
  }
  const Group enough(int64_t{64} << 20);
  EXPECT_EQ(enough.run_within(report).exit_code, 0);
}

TEST(SlowMemoryLimit, DoesNotReadMoreRecordsThanFit) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const Group group(int64_t{64} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("many_records");
  std::string records;
  for (int record = 0; record < 2'000'000; ++record) records += "{\"text\":\"ab\"}\n";
  tiny.file("many.jsonl", records);
  expect_refused(
      group.run_within(
          tiny.train("out", "max_steps=1 --quiet data=" + tiny.path("many.jsonl").string()) +
          kErrorsOnly),
      3, {"a list of ", "memory limit of 64.0 MiB", group.path().string(), "max_samples=N"});
  EXPECT_FALSE(fs::exists(tiny.path("out/train_log.jsonl")));
}

// Only the beginning of a file is looked at to say what it holds.
TEST(SlowMemoryLimit, HoldsNoFileWithoutRecords) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const Group group(int64_t{64} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("no_records");
  std::string blank;
  for (int line = 0; line < 96 << 10; ++line) blank += std::string(1023, ' ') + "\n";
  expect_refused(group.run_within("data stats tokenizer=bytes threads=1 --quiet data=" +
                                  tiny.file("blank.jsonl", blank) + kErrorsOnly),
                 4, {"blank.jsonl has no record", "the file is empty"});
}

// What a run takes beside what is booked counts as well: no limit lets it begin and be killed.
TEST(SlowMemoryLimit, LeavesRoomForTheProgramItself) {
  const TinyRun tiny("memory_room");
  const std::string options = "model=llama-9m method=full max_steps=1";
  const std::string plan =
      run("plan --json " + tiny.settings(options + " threads=2 sequence_len=64")).out;
  const auto peak = nlohmann::json::parse(plan)["device"]["peak"].get<int64_t>();
  bool fits = false;
  for (int64_t more = 4; more <= 84; more += 8) {
    const Group group(peak + (more << 20));
    if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
    const Outcome outcome = group.run_within(
        tiny.train("out", options + " threads=2 sequence_len=64 overwrite=true") + " 2>&1");
    fits = outcome.exit_code == 0;
    EXPECT_TRUE(fits || outcome.exit_code == 3) << more << " MiB: " << outcome.exit_code << "\n"
                                                << outcome.out;
  }
  EXPECT_TRUE(fits);
}

// A configuration whose vocabulary and MLP take most of the memory.
std::string wide_config(const TinyRun& tiny, int vocab, int hidden, int intermediate) {
  return tiny.file("wide.json", fmt::format(R"({{
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {},
      "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
      "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257}})",
                                            vocab, hidden, intermediate));
}

// Runs a command within limits of `least` MiB and more, until one leaves it enough. Each that does
// not must be refused before it leaves anything at the tiny run's `output`, if it writes any.
void expect_done_or_refused(const TinyRun& tiny, const std::string& command, int64_t least,
                            const std::string& output = "") {
  for (int64_t more = 4; more <= 132; more += 8) {
    const Group group((least + more) << 20);
    if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
    const Outcome outcome = group.run_within(command + " 2>&1");
    if (outcome.exit_code == 0) return;
    EXPECT_EQ(outcome.exit_code, 3) << least + more << " MiB\n" << outcome.out;
    if (output.empty()) continue;
    for (const char* ending : {"", ".jackscrew-part", ".unfinished"}) {
      EXPECT_FALSE(fs::exists(tiny.path(output + ending))) << least + more << " MiB " << ending;
    }
  }
  ADD_FAILURE() << "no limit was enough for " << command;
}

// A weight makes millions of examples of few records: an epoch of them is what takes most.
TEST(SlowMemoryLimit, CountsDataWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_stats");
  std::string records;
  for (int record = 0; record < 150'000; ++record) {
    records += fmt::format("{{\"text\":\"{}\"}}\n", record);
  }
  expect_done_or_refused(tiny,
                         "data stats tokenizer=bytes threads=1 --quiet data_weights=20 data=" +
                             tiny.file("many.jsonl", records),
                         60);
}

// Threads that have no room of their own for what they encode wait for one another.
TEST(SlowMemoryLimit, EncodesTextWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_text");
  std::string words;
  while (std::ssize(words) < int64_t{34} << 20) words += "lifting a jack, and more of them\n";
  expect_done_or_refused(tiny,
                         "data tokenize tokenizer=bytes threads=8 --quiet data=" +
                             tiny.file("long.txt", words) + " >/dev/null",
                         76);
}

// What a word takes is known when it is found.
TEST(SlowMemoryLimit, RefusesALongWord) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const Group group(int64_t{220} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("memory_word");
  const std::string word = tiny.file("word.txt", std::string(size_t{16} << 20, 'a'));
  expect_refused(
      group.run_within("data preview tokenizer=bytes threads=1 --quiet data=" + word + kErrorsOnly),
      3, {"a word of 16777216 characters needs ", "memory limit of 220.0 MiB"});
}

// The most that a command had resident at once; no less than this test has, which begins it.
int64_t resident_peak_of(const std::string& arguments) {
  const std::string command = "exec " + std::string(kProgram) + " " + arguments + " >/dev/null";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << arguments;
  return int64_t{usage.ru_maxrss} << 10;
}

// The tokens of a long record take much more as text.
TEST(DataMemory, TokensArePrintedWithoutAnotherCopy) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("long_record");
  constexpr int64_t kTokens = int64_t{8} << 20;
  std::string words;  // a single one would take more while it is encoded than its text does
  while (std::ssize(words) < kTokens) words += "lifting ";
  const std::string of_data = " tokenizer=bytes threads=1 --quiet data=" +
                              tiny.file("long.jsonl", "{\"text\":\"" + words + "\"}\n");
  // Encodes the same record, and shows its beginning.
  const int64_t encoded = resident_peak_of("data preview" + of_data);
  for (const char* style : {"", " --json"}) {
    EXPECT_LE(resident_peak_of("data tokenize" + of_data + style), encoded + kTokens) << style;
  }
}

// Nor are the tokens of a text held twice to be cut into windows.
TEST(DataMemory, WindowsAreCutWithoutAnotherCopy) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("long_text");
  constexpr int64_t kTokens = int64_t{8} << 20;
  std::string words;
  while (std::ssize(words) < kTokens) words += "lifting ";
  // So that what was freed is not resident, whatever its size was.
  ::setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072", 1);
  const std::string of_data =
      " tokenizer=bytes threads=1 --quiet data=" + tiny.file("long.txt", words);
  const int64_t encoded = resident_peak_of("data preview" + of_data);
  const int64_t stored = resident_peak_of("data stats" + of_data);
  ::unsetenv("GLIBC_TUNABLES");
  // While encoded, 5.3 bytes a token; then 5, and for the list of all 8 at most as it grows.
  EXPECT_LE(stored, encoded + 9 * kTokens);
}

// The logits of two models, and no copies of them.
TEST(SlowMemoryLimit, ComparesWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_compare");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 128000, 16, 32));
  const std::string text = tiny.file("long.txt", std::string(600, 'a'));
  const std::string compare =
      fmt::format("compare {0} {0} tokenizer=bytes eval_data={1} sequence_len=512 threads=1",
                  tiny.path("base").string(), text);
  const Outcome refused = run(compare + " device_memory=1KiB 2>&1");
  ASSERT_EQ(refused.exit_code, 3) << refused.out;
  const std::string before = "needs ";
  const size_t at = refused.out.find(before);
  ASSERT_NE(at, std::string::npos) << refused.out;
  const double mib = std::stod(refused.out.substr(at + before.size()));
  EXPECT_GE(mib, 2 * 125);  // 256 rows of f32 for either
  expect_done_or_refused(tiny, compare, static_cast<int64_t>(mib));
}

TEST(SlowMemoryLimit, QuantisesWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_quantise");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 260, 32, 4096));
  std::string text;
  for (int i = 0; text.size() < 8000; ++i) text += fmt::format("{} times {}. ", i, i * 7919 % 977);
  const std::string quantise = fmt::format(
      "quantize model={} tokenizer=bytes data={} output_dir={} sequence_len=64 "
      "calibration_sequences=80 group_size=32 bits=4 threads=2 --quiet",
      tiny.path("base").string(), tiny.file("text.txt", text), tiny.path("q").string());
  const Outcome dry = run(quantise + " --dry-run --json");
  ASSERT_EQ(dry.exit_code, 0) << dry.out;
  const auto memory = nlohmann::json::parse(dry.out)["memory"].get<int64_t>();
  EXPECT_GT(memory, int64_t{64} << 20);  // else a limit would stop the program as it starts
  expect_done_or_refused(tiny, quantise, memory >> 20, "q");
}

// Modules that an adapter has as a whole are in memory while they are merged.
TEST(SlowMemoryLimit, MergesWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_merge");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 128000, 64, 32));
  const std::string base = tiny.path("base").string();
  tiny.must_train(
      "adapter",
      "max_steps=1 method=lora modules_to_save=embed_tokens,lm_head init=pretrained model=" + base);
  constexpr int64_t kStarts = 44;  // MiB that let the program get to its adapter
  expect_done_or_refused(
      tiny,
      fmt::format("merge model={} adapter={} output={} storage=bf16 "
                  "tokenizer=bytes threads=1",
                  base, tiny.path("adapter").string(), tiny.path("m.gguf").string()),
      kStarts, "m.gguf");
}

TEST(SlowMemoryLimit, WithoutProcItIsUnknown) {
  const auto without_proc = [](const std::string& command) {
    return run_shell("unshare -m sh -c 'mount -t tmpfs none /proc && exec " + command + "' 2>&1");
  };
  if (without_proc("true").exit_code != 0) GTEST_SKIP() << "no right to mount";
  const TinyRun tiny("no_proc");
  const Outcome doctor = without_proc(std::string(kProgram) + " doctor");
  EXPECT_NE(doctor.out.find("\nmemory: unknown\n"), std::string::npos) << doctor.out;
  const Outcome trained =
      without_proc(std::string(kProgram) + " " + tiny.train("out", "max_steps=1"));
  EXPECT_NE(trained.out.find(" allocated, resident size unknown\n"), std::string::npos)
      << trained.out;
}

}  // namespace
}  // namespace jackscrew
