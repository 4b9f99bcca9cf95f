// What a run reads.
#include "train/run_data.h"
#include "train/run_start.h"

#include <fmt/format.h>
#include <malloc.h>

#include <cstdio>
#include <map>
#include <string_view>

#include "tests/support/golden.h"
#include "tests/support/sanitizer.h"
#include "tests/support/tiny_run.h"
#include "train/trainer.h"

namespace jackscrew {
namespace {

// The recipe that such a run has left asks for them no more than its user did.
TEST(RunData, SlowSamplesAreLeftOutWhereNobodyAsksForThem) {
  constexpr int64_t kManyBytes = int64_t{1} << 50;
  const ModelConfig model = open_model("smollm2-135m").config;
  const auto left_out = [&](const char* count, const char* origin) {
    OptionSet options = run_options(method_tables());
    if (count != nullptr) options.set("report_samples", count, origin);
    RunData data;
    data.samples.resize(2);
    const std::string line = leave_out_slow_samples(data, options, 1e12, kManyBytes, model);
    EXPECT_EQ(line.empty(), !data.samples.empty());
    return data.samples.empty();
  };
  EXPECT_TRUE(left_out(nullptr, nullptr));
  EXPECT_TRUE(left_out("2", "out/recipe.yaml:90"));
  EXPECT_FALSE(left_out("3", "mine.yaml:1"));
  EXPECT_FALSE(left_out("2", kCommandLine));
}

TEST(RunData, ARunOfOneEpochPlansNoOther) {
  const std::vector<Example> examples(100, Example{{1, 2, 3, 4}, {1, 1, 1, 1}});
  RunData data;
  data.train = Dataset(examples, 16);
  const Recipe recipe = with_lanes(make_recipe({"sequence_len=16", "packing=false"}), 1);
  const BatchSampler sampler(data.train, run_batches(recipe));
  const int64_t steps = sampler.steps_per_epoch();
  const DataMemory one = data_memory(recipe, data, sampler, steps);
  EXPECT_EQ(one.planning, 0);
  EXPECT_EQ(one.step, sampler.step_bytes());
  EXPECT_EQ(data_memory(recipe, data, sampler, steps + 1).planning, sampler.planning_bytes());
  EXPECT_GT(sampler.planning_bytes(), 0);
  // More is evaluated at once than a step has.
  data.evaluation = data.train;
  EXPECT_GE(data_memory(recipe, data, sampler, steps).step, 400 * 12);
}

// The bytes that malloc() has given out, at the last line of a run that begins with each word.
struct HeapAtLines {
  std::map<std::string, size_t> bytes;

  static ssize_t write(void* cookie, const char* text, size_t size) {
    const struct mallinfo2 heap = ::mallinfo2();
    const std::string_view line(text, size);
    auto& bytes = static_cast<HeapAtLines*>(cookie)->bytes;
    bytes[std::string(line.substr(0, line.find(' ')))] = heap.uordblks + heap.hblkhd;
    return static_cast<ssize_t>(size);
  }
};

// Memory is counted for the larger of the two.
TEST(SlowRunData, AStepsBatchIsGoneBeforeTheEvaluation) {
  if (kSanitized) GTEST_SKIP() << "its malloc() does not tell";
  const TinyRun tiny("batch_is_gone");
  constexpr size_t kRows = 512, kTokens = 120;
  std::string many;
  for (size_t i = 0; i < kRows; ++i) {
    many += nlohmann::json{{"text", std::string(kTokens, '7')}}.dump() + "\n";
  }
  constexpr size_t kBatchBytes = kRows * kTokens * 3 * sizeof(int32_t);  // ids, positions, targets
  HeapAtLines heap;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(
      ::fopencookie(&heap, "w", {nullptr, &HeapAtLines::write, nullptr, nullptr}), std::fclose);
  TrainConsole console;
  console.out = out.get();
  train(make_recipe(settings_of(tiny.settings(fmt::format(
            "method=full max_steps=1 report_samples=0 sequence_len=128 "
            "micro_batch_size=16 gradient_accumulation_steps={} packing=false output_dir={} "
            "data={} eval_data={}",
            kRows / 16, tiny.path("out").string(), tiny.file("many.jsonl", many),
            tiny.eval_data())))),
        console);
  // The session still lives when the run tells of its report.
  ASSERT_TRUE(heap.bytes.contains("eval") && heap.bytes.contains("report"));
  EXPECT_LT(heap.bytes.at("eval"), heap.bytes.at("report") + kBatchBytes / 2);
}

// What a run begins from may have become another one under the same name.
TEST(SlowRunData, AnotherStartIsAnotherRun) {
  const TinyRun tiny("start");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string over_base =
      "init=pretrained max_steps=1 report_samples=0 model=" + tiny.path("base").string() + " ";
  for (const auto& [method, begins] :
       {std::pair("lora", "adapter="), {"full", "lora_init=pissa lora_original_model="}}) {
    const std::string from = fmt::format("{}method={} learning_rate=1e-2 ", over_base, method);
    const std::string settings = over_base + "method=lora " + begins + tiny.path(method).string();
    tiny.must_train(method, from);
    tiny.must_train("out", settings + " overwrite=true");
    tiny.must_train(method, from + "seed=3 overwrite=true");
    const auto before = contents(tiny.path("out"));
    const Outcome other = run(tiny.train("out", settings) + " 2>&1");
    EXPECT_EQ(other.exit_code, 5) << other.out;
    EXPECT_NE(other.out.find("the model had configuration "), std::string::npos) << other.out;
    EXPECT_TRUE(contents(tiny.path("out")) == before);
  }
}

// It goes on with the date of its first start, be it on another day.
TEST(SlowRunData, ATemplatePrintsTheDateOfTheFirstStart) {
  const TinyRun tiny("chat_date");
  const std::string settings =
      "method=full max_steps=4 save_steps=2 report_samples=0 chat_template=" +
      tiny.file(
          "date.jinja",
          "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}!{% endfor %}") +
      " ";
  const std::string that_day = settings + "chat_date=2024-02-29";
  tiny.must_train("whole", that_day);
  tiny.must_train("out", that_day);
  tiny.lose_result("out");
  fs::remove_all(tiny.path("out/checkpoint-4"));
  tiny.must_train("out", settings);
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
  EXPECT_NE(tiny.text("out/recipe.yaml").find("\nchat_date: \"2024-02-29\" "), std::string::npos);
  for (const char* given : {"", "chat_date=today"}) {
    const Outcome again = run(tiny.train("out", settings + given) + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
    EXPECT_EQ(again.out.find("prints the date"), std::string::npos) << again.out;
  }
  const Outcome other = run(tiny.train("out", settings + "chat_date=2024-03-01") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  // A new run keeps the day on which it begins.
  const Outcome today = run(tiny.train("today", settings) + kErrorsOnly);
  EXPECT_EQ(today.exit_code, 0) << today.out;
  const std::string warning = "prints the date; to repeat this run, set chat_date=";
  const size_t begin = today.out.find(warning);
  ASSERT_NE(begin, std::string::npos) << today.out;
  const std::string day = today.out.substr(begin + warning.size(), 10);
  for (const char* recipe : {"today/recipe.yaml", "today/checkpoint-2/recipe.yaml"}) {
    EXPECT_NE(tiny.text(recipe).find("\nchat_date: \"" + day + "\" "), std::string::npos) << day;
  }
}

}  // namespace
}  // namespace jackscrew
