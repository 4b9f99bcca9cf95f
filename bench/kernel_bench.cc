// Speed of the CPU kernels, as ratios measured within one process: of our tiled gemm to
// whole-matrix oneDNN calls, of attention to the machine's GEMM peak. Every figure is the best of
// its iterations.
//   kernel_bench [--isa=LEVEL] [--threads=N] [--clock=wall|cpu] [Google Benchmark's flags]
// --clock=cpu counts the threads' processor time instead of elapsed time: blind to threads that
// wait, but meaningful on a machine that other programs use too (with OMP_WAIT_POLICY=passive).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "bench/machine.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/rows/loss.rows.h"
#include "kernels/rows/model.rows.h"
#include "optim/optimizer.h"
#include "tensor/memory.h"

namespace jackscrew {
namespace {

IsaLevel isa = IsaLevel::v3;

BenchClock measuring;

template <class Body>
double seconds(const Body& body) {
  const double begin = measuring.seconds();
  body();
  return measuring.seconds() - begin;
}

Memory& memory() {
  static Memory instance("host", make_host_backing(), 0);
  return instance;
}

Ops& ops() {
  static const std::unique_ptr<Ops> kOps = make_cpu_ops(measuring.threads, isa);
  return *kOps;
}

OwnedTensor filled(DType dtype, int64_t rows, int64_t cols) {
  return filled(memory(), dtype, rows, cols);
}

// The best speed of a 2048^3 oneDNN product, GFLOP/s.
double peak(DType dtype) {
  static std::array<double, 3> measured{};
  double& best = measured[dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2];
  if (best == 0.0) best = 1e-9 * gemm_peak(measuring, dtype, 10);
  return best;
}

void peak_benchmark(benchmark::State& state, DType dtype) {
  for (auto _ : state) benchmark::DoNotOptimize(peak(dtype));
  state.counters["GFLOPs"] = peak(dtype);
}

struct GemmShape {
  int64_t m, n, k;
};

// Alternates the two, so that both see the same load of the machine.
void gemm_benchmark(benchmark::State& state, DType dtype, GemmShape shape, bool ta, bool tb) {
  const auto [m, n, k] = shape;
  const OwnedTensor a = ta ? filled(dtype, k, m) : filled(dtype, m, k);
  const OwnedTensor b = tb ? filled(dtype, n, k) : filled(dtype, k, n);
  const OwnedTensor c = filled(DType::f32, m, n);
  WholeGemm whole(measuring.threads, dtype, m, n, k, ta, tb, a.view().raw(), b.view().raw(),
                  c.view().raw());
  const auto run_ours = [&] {
    ops().gemm(a.view(), Transpose{ta}, b.view(), Transpose{tb}, c.view(), Accumulate::no);
  };
  run_ours();
  double best_whole = 1e30;
  double best_ours = 1e30;
  for (auto _ : state) {
    best_whole = std::min(best_whole, seconds([&] { whole.run(); }));
    best_ours = std::min(best_ours, seconds(run_ours));
  }
  const double work = 2e-9 * static_cast<double>(m * n * k);
  const double bytes = static_cast<double>(a.view().bytes() + b.view().bytes() + c.view().bytes());
  state.counters["GFLOPs"] = work / best_ours;
  state.counters["whole_GFLOPs"] = work / best_whole;
  state.counters["ratio"] = best_whole / best_ours;
  state.counters["of_peak"] = work / best_ours / peak(dtype);
  if (m <= 4) state.counters["GB/s"] = 1e-9 * bytes / best_ours;
  state.SetLabel(whole.name());
}

struct AttentionData {
  static constexpr int64_t kHeads = 9;
  static constexpr int64_t kKvHeads = 3;
  static constexpr int64_t kHeadDim = 64;

  AttentionData(int64_t length, int64_t sequences)
      : tokens(length * sequences),
        cu_seqlens(memory(), Purpose::activations, DType::i32, {sequences + 1}),
        q(filled(DType::f32, tokens, kHeads * kHeadDim)),
        k(filled(DType::f32, tokens, kKvHeads * kHeadDim)),
        v(filled(DType::f32, tokens, kKvHeads * kHeadDim)),
        out(filled(DType::f32, tokens, kHeads * kHeadDim)),
        dout(filled(DType::f32, tokens, kHeads * kHeadDim)),
        dq(filled(DType::f32, tokens, kHeads * kHeadDim)),
        dk(filled(DType::f32, tokens, kKvHeads * kHeadDim)),
        dv(filled(DType::f32, tokens, kKvHeads * kHeadDim)),
        lse(filled(DType::f32, kHeads, tokens)),
        arena(memory(), Purpose::workspace, int64_t{64} << 20) {
    for (int64_t i = 0; i <= sequences; ++i) {
      cu_seqlens.view().data<int32_t>()[i] = static_cast<int32_t>(i * length);
    }
    shape = {cu_seqlens.view(), cu_seqlens.view(), sequences, kHeads, kKvHeads, kHeadDim, 0.125f};
  }
  void forward() {
    ops().attention_forward(shape, q.view(), k.view(), v.view(), out.view(), lse.view(), arena);
  }
  void backward() {
    ops().attention_backward(shape, q.view(), k.view(), v.view(), out.view(), lse.view(),
                             dout.view(), dq.view(), dk.view(), dv.view(), arena);
  }

  int64_t tokens;
  OwnedTensor cu_seqlens, q, k, v, out, dout, dq, dk, dv, lse;
  Arena arena;
  AttentionShape shape;
};

// Counts the causal half of the products: 4 T^2 d / 2 per head forward, 2.5 times that backward.
void attention_benchmark(benchmark::State& state, int64_t length, int64_t sequences,
                         bool backward) {
  AttentionData data(length, sequences);
  data.forward();
  double best = 1e30;
  for (auto _ : state) {
    best = std::min(best, seconds([&] { backward ? data.backward() : data.forward(); }));
  }
  const double work =
      2e-9 * static_cast<double>(length * length * sequences * data.kHeads * data.kHeadDim) *
      (backward ? 2.5 : 1.0);
  state.counters["GFLOPs"] = work / best;
  state.counters["of_peak"] = work / best / peak(DType::f32);
}

template <class Kernel>
void row_benchmark(benchmark::State& state, const Kernel& kernel, int64_t rows, double bytes) {
  ops().launch(kernel, rows);
  double best = 1e30;
  for (auto _ : state) best = std::min(best, seconds([&] { ops().launch(kernel, rows); }));
  state.counters["GB/s"] = 1e-9 * bytes / best;
}

// The row kernels of a training step, with the bytes that each has to move.
void rows_benchmark(benchmark::State& state, const std::string& name) {
  constexpr int64_t kTokens = 2048;
  constexpr int64_t kHidden = 576;
  constexpr int64_t kWidth = 1536;
  constexpr int64_t kVocab = 49152;
  constexpr int64_t kLossRows = 512;
  const double hidden_bytes = 4.0 * kTokens * kHidden;
  const double width_bytes = 4.0 * kTokens * kWidth;
  const bool loss = name == "cross_entropy";
  const int64_t elements = loss ? kLossRows * kVocab : kTokens * kWidth;
  std::array<OwnedTensor, 5> tensors;
  std::array<float*, 5> x{};
  for (size_t i = 0; i < (loss ? 2 : x.size()); ++i) {
    tensors[i] = filled(DType::f32, 1, elements);
    x[i] = tensors[i].view().data<float>();
  }
  std::vector<float> rstd(kTokens, 1.0f);
  std::vector<int32_t> indices(kTokens);
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int32_t>(i * 5 % kTokens);
  if (name == "rms_norm") {
    row_benchmark(state, RmsNormForwardF32{x[0], x[1], x[2], rstd.data(), kHidden, 1e-5f}, kTokens,
                  2 * hidden_bytes);
  } else if (name == "rms_norm_backward") {
    row_benchmark(state, RmsNormBackwardF32{x[0], x[1], rstd.data(), x[2], x[3], kHidden}, kTokens,
                  4 * hidden_bytes);
  } else if (name == "rms_norm_weight") {
    const int64_t chunks = ceil_div(kTokens, kTokenChunk);
    row_benchmark(
        state,
        RmsNormWeightGradientF32{x[0], rstd.data(), x[1], x[2], kTokens, kHidden, kTokenChunk},
        chunks * ceil_div(kHidden, kColumnBlock), 2 * hidden_bytes);
  } else if (name == "rotary") {
    row_benchmark(state,
                  RotaryEmbeddingF32{x[0], x[0], indices.data(), x[1], x[2], 9, 64, kHidden, 1.0f},
                  kTokens, 2 * hidden_bytes);
  } else if (name == "swiglu") {
    row_benchmark(state, SwigluForwardF32{x[0], x[1], x[2], kWidth}, kTokens, 3 * width_bytes);
  } else if (name == "swiglu_backward") {
    row_benchmark(state, SwigluBackwardF32{x[0], x[1], x[2], x[3], x[4], kWidth}, kTokens,
                  5 * width_bytes);
  } else if (name == "gather") {
    row_benchmark(state, GatherRows{x[0], indices.data(), x[1], kHidden}, kTokens,
                  2 * hidden_bytes);
  } else if (name == "scatter_add") {
    row_benchmark(state, ScatterAddRows{x[0], indices.data(), x[1], kTokens, kHidden},
                  ScatterAddRows::kResidues * ceil_div(kHidden, kColumnBlock), 3 * hidden_bytes);
  } else if (loss) {
    // The gradient replaces the logits: read, and read and written once more.
    StepScalars scalars{};
    scalars.inverse_targets = 1.0f / kLossRows;
    const SoftmaxCrossEntropyF32 args{x[0], indices.data(), rstd.data(), x[0], &scalars, kVocab};
    row_benchmark(state, args, kLossRows, 3.0 * 4.0 * kLossRows * kVocab);
  }
}

// Updates of a tensor of 4 million elements. Each reads and writes the parameter and the gradient
// besides the states.
void optimizer_benchmark(benchmark::State& state, const std::string& name) {
  constexpr int64_t kElements = 1 << 22;
  const OwnedTensor parameter = filled(DType::f32, 1, kElements);
  const OwnedTensor gradient = filled(DType::f32, 1, kElements);
  const auto states = make_optimizer(name, {})->make_state(memory(), kElements);
  int64_t bytes = int64_t{4} * 4 * kElements;
  states->visit("", [&](const StateRef& ref) { bytes += 2 * ref.view.bytes(); });
  StepScalars scalars{};
  scalars.learning_rate = 1e-3f;
  scalars.clip_scale = 1.0f;
  scalars.finite = 1;
  Arena scratch(memory(), Purpose::workspace, 64);
  Context context{ops(), scratch, &scalars, true};
  double best = 1e30;
  for (auto _ : state) {
    ops().copy(gradient.view(), parameter.view());  // the update before has zeroed it
    best = std::min(best, seconds([&] {
                      states->apply(context, parameter.view(), gradient.view(), 1.0, 0.0);
                    }));
  }
  state.counters["Melements/s"] = 1e-6 * static_cast<double>(kElements) / best;
  state.counters["GB/s"] = 1e-9 * static_cast<double>(bytes) / best;
}

void register_all() {
  std::vector<DType> types = {DType::f32};
  if (isa >= IsaLevel::v4_bf16) types.push_back(DType::bf16);
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    if (dtype == DType::bf16 && types.size() == 1) continue;
    benchmark::RegisterBenchmark(fmt::format("peak/{}", dtype_name(dtype)).c_str(), peak_benchmark,
                                 dtype)
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
  // Llama 135M at 2048 tokens: forward is nt [tokens, in] · [out, in]ᵀ, the input's gradient nn,
  // the weight's gradient tn with tokens as the depth. Then the head, square, and token-by-token
  // shapes.
  struct Case {
    GemmShape shape;
    const char* transposes;
  };
  std::vector<Case> cases;
  constexpr int64_t kTokens = 2048;
  for (const auto& [in, out] :
       {std::pair<int64_t, int64_t>{576, 576}, {576, 192}, {576, 1536}, {1536, 576}}) {
    cases.push_back({{kTokens, out, in}, "nt"});
    cases.push_back({{kTokens, in, out}, "nn"});
    cases.push_back({{out, in, kTokens}, "tn"});
  }
  cases.push_back({{512, 49152, 576}, "nt"});
  cases.push_back({{512, 576, 49152}, "nn"});
  cases.push_back({{49152, 576, 512}, "tn"});
  for (const char* transposes : {"nn", "nt", "tn"}) {
    cases.push_back({{2048, 2048, 2048}, transposes});
    cases.push_back({{512, 4096, 4096}, transposes});
  }
  for (const int64_t m : {1, 4}) {
    cases.push_back({{m, 1536, 576}, "nt"});
    cases.push_back({{m, 49152, 576}, "nt"});
    cases.push_back({{m, 4096, 4096}, "nt"});
  }
  for (const DType dtype : types) {
    for (const Case& c : cases) {
      const auto name = fmt::format("gemm/{}/{}/{}x{}x{}", dtype_name(dtype), c.transposes,
                                    c.shape.m, c.shape.n, c.shape.k);
      benchmark::RegisterBenchmark(name.c_str(), gemm_benchmark, dtype, c.shape,
                                   c.transposes[0] == 't', c.transposes[1] == 't')
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  for (const bool backward : {false, true}) {
    for (const int64_t length : {512, 2048}) {
      const auto name = fmt::format("attention/{}/{}", backward ? "backward" : "forward", length);
      benchmark::RegisterBenchmark(name.c_str(), attention_benchmark, length, kTokens / length,
                                   backward)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  for (const char* name : {"rms_norm", "rms_norm_backward", "rms_norm_weight", "rotary", "swiglu",
                           "swiglu_backward", "gather", "scatter_add", "cross_entropy"}) {
    benchmark::RegisterBenchmark((std::string("rows/") + name).c_str(), rows_benchmark,
                                 std::string(name))
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  }
  for (const char* name : {"adamw", "adamw_8bit"}) {
    benchmark::RegisterBenchmark((std::string("optimizer/") + name).c_str(), optimizer_benchmark,
                                 std::string(name))
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const KernelRun asked = take_kernel_run(arguments);
  if (!arguments.empty()) fail(ErrorKind::usage, "unknown argument {}", arguments.front());
  measuring = asked.clock;
  isa = asked.isa;
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("kernel_bench", [&] { return jackscrew::run(argc, argv); });
}
