// Speed and memory of a whole training step, beside the machine's own speed in the same run.
//   step_bench [--clock=wall|cpu] [a recipe's settings, such as model=PATH product=bf16 threads=4]
//              [--json]
// Without settings: SmolLM2-135M's shape with random weights, learner full, 4 x 512 tokens that are
// all targets, 2 threads, every product the device has. max_steps steps are measured after one that
// is not, with a measurement of the peak before each. On a GPU one more step is divided into
// its parts by events on the device: issued kernel by kernel, so that it takes longer where the
// others are replayed as graphs.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/json_object.h"
#include "base/process_memory.h"
#include "base/text.h"
#include "bench/timed_ops.h"
#include "cli/arguments.h"
#include "session/flops.h"
#include "session/session.h"

namespace jackscrew {
namespace {

StepBatch random_batch(const Recipe& recipe, int64_t vocab_size) {
  std::mt19937 random(1);
  const auto id = [&] {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size));
  };
  StepBatch step;
  for (int64_t i = 0; i < recipe.gradient_accumulation_steps; ++i) {
    MicroBatch micro;
    micro.cu_seqlens = {0};
    for (int64_t s = 0; s < recipe.micro_batch_size; ++s) {
      for (int64_t t = 0; t < recipe.sequence_len; ++t) {
        micro.ids.push_back(id());
        micro.positions.push_back(narrow<int32_t>(t));
        micro.targets.push_back(id());
      }
      micro.cu_seqlens.push_back(narrow<int32_t>(micro.tokens()));
    }
    micro.target_count = micro.tokens();
    step.tokens += micro.tokens();
    step.targets += micro.target_count;
    step.micro_batches.push_back(std::move(micro));
  }
  return step;
}

bool on_gpu(const Recipe& recipe) {
  return recipe.device.starts_with("cuda");
}

// The best of `runs` 8192^3 products of the device, in operations per second. Holds memory only
// meanwhile.
double device_gemm_peak(const Recipe& recipe, const BenchClock& clock, DType dtype, int runs) {
  constexpr int64_t kSize = 8192;
  const auto device = open_device(recipe);
  Memory memory("device", device->make_backing(), 0);
  const auto ops = device->make_ops(memory);
  const OwnedTensor a(memory, Purpose::activations, dtype, {kSize, kSize});
  const OwnedTensor b(memory, Purpose::activations, dtype, {kSize, kSize});
  const OwnedTensor c(memory, Purpose::activations, DType::f32, {kSize, kSize});
  // Zeros would draw less power, and a GPU would run faster than it can with numbers.
  Memory host("host", make_host_backing(), 0);
  const OwnedTensor values = filled(host, dtype, kSize, kSize);
  ops->copy(a.view(), values.view());
  ops->copy(b.view(), values.view());
  float first = 0.0f;
  const auto finish = [&] {
    ops->copy(Tensor(&first, DType::f32, {1, 1}), c.view().rows(0, 1).columns(0, 1));
  };
  const auto multiply = [&] {
    ops->gemm(a.view(), Transpose::no, b.view(), Transpose::yes, c.view(), Accumulate::no);
  };
  multiply();
  finish();
  double best = 0.0;
  for (int i = 0; i < runs; ++i) {
    const double begin = clock.seconds();
    multiply();
    finish();
    best = std::max(best, 2.0 * kSize * kSize * kSize / (clock.seconds() - begin));
  }
  return best;
}

// Of this process: what the system counts for it now.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;  // pages
  return resident * sysconf(_SC_PAGESIZE);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Measured {
  std::string product;
  double tokens = 0, operations = 0;  // of a step
  double peak = 0;                    // operations per second, the best seen
  double seconds = 0;                 // of the fastest step
  double median_seconds = 0;
  double median_share = 0;   // of the peak measured just before each step
  PartCosts parts{};         // of the fastest step; on a GPU, of one more
  double parts_seconds = 0;  // all of them, and what lies between
  KernelSeconds kernels;     // of that step on a GPU
  RepeatCounts repeats;
  bool recompute = false;
  int64_t booked = 0, anonymous = 0, resident = 0;  // bytes
  double slowest_seconds = 0;
  // Rotations of rotary, or refreshes of galore, after the first step: the seconds that steps
  // waited for them, and those of copies beside steps.
  std::string event;
  int64_t events = 0;
  double event_seconds = 0, seconds_beside = 0;
  int64_t driver = 0;  // bytes of the GPU that its driver counts from before the model to its end

  double share() const { return operations / seconds / peak; }
};

Measured measure(const Recipe& recipe, const ModelFiles& files, const BenchClock& clock,
                 DType dtype) {
  const int64_t tokens = recipe.micro_batch_size * recipe.sequence_len;
  const SessionUse use{.training = true,
                       .tokens = tokens,
                       .max_positions = recipe.sequence_len,
                       .kv_tokens = 0,
                       .logits_rows = 0};
  PartCosts costs{};
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  SessionHooks hooks;
  const bool gpu = on_gpu(recipe);
  // Three products: the first pays for the library's start-up.
  const auto peak_now = [&] {
    return gpu ? device_gemm_peak(recipe, clock, dtype == DType::f32 ? dtype : DType::bf16, 3)
               : gemm_peak(clock, dtype, 3);
  };
  const double peak_before = gpu ? peak_now() : 0.0;
  const auto device = open_device(recipe);
  const int64_t free_before = device->own_memory().value_or(0);
  TimedOps* timed = nullptr;
  hooks.wrap = [&](std::unique_ptr<Ops> ops) {
    auto out = std::make_unique<TimedOps>(std::move(ops), files.config.vocab_size, clock, costs);
    timed = out.get();
    return out;
  };
  Session session(recipe, files, use, plan, hooks);
  const StepBatch batch = random_batch(recipe, files.config.vocab_size);
  Measured out;
  out.peak = peak_before;
  out.product = recipe.product;
  out.recompute = plan.recompute;
  out.tokens = static_cast<double>(batch.tokens);
  out.operations = training_flops(session.stage(), batch);
  std::vector<double> times;
  std::vector<double> shares;
  for (int64_t step = 0; step <= recipe.max_steps; ++step) {
    // Beside a model, a GPU may have no room for it.
    const double peak = gpu ? peak_before : peak_now();
    costs = {};
    const double begin = clock.seconds();
    session.accumulate(batch, 1e-5, step);
    if (!session.update({.matrices = 0.01, .vectors = 0.01}).finite)
      fail(ErrorKind::non_finite, "step {} is not finite", step);
    const double seconds = clock.seconds() - begin;
    for (const LearnerEvent& event : session.learner().take_events()) {
      const auto fields = nlohmann::json::parse(event.fields.text());
      if (step == 0 || !fields.contains("seconds")) continue;
      out.event = event.name;
      ++out.events;
      out.event_seconds += fields["seconds"].get<double>();
      out.seconds_beside += fields.value("seconds_beside", 0.0);
    }
    out.peak = std::max(out.peak, peak);
    // All that a step uses is taken before the first one and kept.
    out.anonymous = std::max(out.anonymous, anonymous_resident_bytes());
    out.resident = std::max(out.resident, resident_bytes());
    if (step == 0) continue;
    if (times.empty() || seconds < out.seconds) {
      out.seconds = seconds;
      out.parts = costs;
    }
    times.push_back(seconds);
    shares.push_back(out.operations / seconds / peak);
  }
  out.parts_seconds = out.seconds;
  out.repeats = session.ops().repeat_counts();
  if (gpu) {
    timed->measure(true);
    session.accumulate(batch, 1e-5, recipe.max_steps + 1);
    session.apply({});
    costs = {};
    out.parts_seconds = timed->collect();
    out.parts = costs;
    out.kernels = timed->kernel_seconds();
    timed->measure(false);
  }
  out.median_seconds = median(times);
  out.slowest_seconds = *std::max_element(times.begin(), times.end());
  out.median_share = median(shares);
  out.booked = session.memory().ledger().peak;
  out.driver = free_before - device->own_memory().value_or(0);
  return out;
}

void print_text(const Measured& m) {
  fmt::print("\nproduct {}: {:.1f} tokens/s (median {:.1f})\n", m.product, m.tokens / m.seconds,
             m.tokens / m.median_seconds);
  fmt::print(
      "  {:.1f} % of speed of light (median {:.1f} %): {:.3g} GFLOP in {:.2f} s, peak {:.1f}"
      " GFLOP/s\n",
      100.0 * m.share(), 100.0 * m.median_share, 1e-9 * m.operations, m.seconds, 1e-9 * m.peak);
  fmt::print("  slowest step {:.2f} s, {:.2f} times the median\n", m.slowest_seconds,
             m.slowest_seconds / m.median_seconds);
  if (m.events > 0) {
    fmt::print("  {} x {}, {:.3f} s each; {:.3f} s of copies beside steps\n", m.events, m.event,
               m.event_seconds / static_cast<double>(m.events),
               m.seconds_beside / static_cast<double>(m.events));
  }
  fmt::print("  memory {} booked; resident {}, {} of it anonymous\n", human_bytes(m.booked),
             human_bytes(m.resident), human_bytes(m.anonymous));
  if (m.driver > 0) {
    fmt::print("  the GPU's driver counts {}\n", human_bytes(m.driver));
    fmt::print("  graphs: {} recorded, {} refused; {} replays, {} launched kernel by kernel{}\n",
               m.repeats.recorded, m.repeats.refused, m.repeats.replayed, m.repeats.issued,
               m.repeats.refusal.empty() ? "" : ": " + m.repeats.refusal);
  }
  fmt::print("    {:<20}{:>9}{:>9}{:>11}\n", "part", "ms", "of step", "of peak");
  double rest = m.parts_seconds;
  for (size_t i = 0; i < kParts; ++i) {
    const PartCost& part = m.parts[i];
    if (part.seconds == 0.0) continue;
    rest -= part.seconds;
    fmt::print("    {:<20}{:>9.1f}{:>8.1f}%", part_name(i), 1e3 * part.seconds,
               100.0 * part.seconds / m.parts_seconds);
    if (part.operations > 0.0) {
      fmt::print("{:>10.1f}%", 100.0 * part.operations / part.seconds / m.peak);
    }
    fmt::print("\n");
  }
  fmt::print("    {:<20}{:>9.1f}{:>8.1f}%\n", "rest", 1e3 * rest, 100.0 * rest / m.parts_seconds);
  if (m.kernels.empty()) return;
  constexpr size_t kShown = 16;
  std::vector<std::pair<double, std::string_view>> kernels;
  for (const auto& [name, seconds] : m.kernels) kernels.emplace_back(seconds, name);
  std::sort(kernels.rbegin(), kernels.rend());
  kernels.resize(std::min(kernels.size(), kShown));
  fmt::print("    row kernels that take longest\n");
  for (const auto& [seconds, name] : kernels) {
    fmt::print("      {:<32}{:>9.1f} ms\n", name, 1e3 * seconds);
  }
}

void print_json(const Measured& m) {
  JsonObject parts;
  for (size_t i = 0; i < kParts; ++i) {
    if (m.parts[i].seconds == 0.0) continue;
    JsonObject part;
    part.add("seconds", m.parts[i].seconds).add("gflop", 1e-9 * m.parts[i].operations);
    parts.add(part_name(i), part);
  }
  JsonObject kernels;
  for (const auto& [name, seconds] : m.kernels) kernels.add(std::string(name), seconds);
  JsonObject graphs;
  graphs.add("recorded", m.repeats.recorded)
      .add("refused", m.repeats.refused)
      .add("replayed", m.repeats.replayed)
      .add("issued", m.repeats.issued)
      .add("refusal", m.repeats.refusal);
  JsonObject object;
  object.add("bench", "step")
      .add("product", m.product)
      .add("tokens_per_second", m.tokens / m.seconds)
      .add("median_tokens_per_second", m.tokens / m.median_seconds)
      .add("share_of_peak", m.share())
      .add("median_share_of_peak", m.median_share)
      .add("peak_gflops", 1e-9 * m.peak)
      .add("step_gflop", 1e-9 * m.operations)
      .add("recompute", m.recompute)
      .add("booked_bytes", m.booked)
      .add("anonymous_bytes", m.anonymous)
      .add("peak_bytes", m.resident)
      .add("driver_bytes", m.driver)
      .add("step_seconds", m.seconds)
      .add("median_step_seconds", m.median_seconds)
      .add("slowest_step_seconds", m.slowest_seconds)
      .add("event", m.event)
      .add("events", m.events)
      .add("event_seconds", m.event_seconds)
      .add("event_seconds_beside", m.seconds_beside)
      .add("graphs", graphs)
      .add("row_kernel_seconds", kernels)
      .add("parts_seconds", m.parts_seconds)
      .add("parts", parts);
  fmt::print("{}\n", object.text());
}

int run(std::vector<std::string> arguments) {
  BenchClock clock = take_clock(arguments);
  // What is written later wins.
  arguments.insert(arguments.begin(), {"method=full", "threads=2", "micro_batch_size=4",
                                       "sequence_len=512", "max_steps=5"});
  Recipe recipe = read_arguments(arguments, 0, "step_bench");
  const ModelFiles files = open_model(recipe.model.empty() ? "smollm2-135m" : recipe.model);
  if (files.source == nullptr) recipe.random_init = true;
  const IsaLevel isa = choose_isa(recipe.isa);
  clock.threads = narrow<int>(recipe.threads);
  if (!recipe.json) {
    fmt::print("{}, {} x {} tokens, learner {}, {} threads, {}, {} time\n", files.origin,
               recipe.micro_batch_size * recipe.gradient_accumulation_steps, recipe.sequence_len,
               recipe.learner, recipe.threads, on_gpu(recipe) ? recipe.device : isa_name(isa),
               clock.name());
  }
  std::vector<std::string> products = {recipe.product};
  if (recipe.product == "auto") {
    products = {"f32"};
    if (on_gpu(recipe) || isa >= IsaLevel::v4_bf16) products.emplace_back("bf16");
    products.emplace_back("int8");
  }
  for (const std::string& product : products) {
    Recipe one = recipe;
    one.product = product;
    // Whose peak it is measured by: 4-bit codes are multiplied as bytes.
    const DType dtype = product == "f32" ? DType::f32 : product == "bf16" ? DType::bf16 : DType::i8;
    const Measured measured = measure(one, files, clock, dtype);
    recipe.json ? print_json(measured) : print_text(measured);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("step_bench", [&] { return jackscrew::run({argv + 1, argv + argc}); });
}
