// Rates of a device's single ops at the sizes of real runs, each beside what it has to read and
// write or to compute.
//   device_bench PART... [device=NAME] [--tokens=N] [--json]
// PART: copies (host and device, GB/s), rows (row kernels, GB/s), gemm (products by shape,
// TFLOP/s), int8 (products of bytes, TOPS), attention (by head and length, TFLOP/s;
// bench/torch_attention.py measures the same of PyTorch's). tokens: of a micro-batch (16384). By
// marks on the device where it has them, the median of some runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/checked.h"
#include "base/json_object.h"
#include "bench/machine.h"
#include "cli/arguments.h"
#include "kernels/device.h"
#include "kernels/rows/loss.rows.h"
#include "kernels/rows/model.rows.h"
#include "optim/adamw.rows.h"
#include "optim/adamw_8bit.rows.h"
#include "quant/format.h"
#include "quant/plain.rows.h"
#include "quant/weight.h"

namespace jackscrew {
namespace {

constexpr int64_t kVocab = 151936;  // Qwen2.5's
constexpr int64_t kBlockElements = int64_t{1} << 22;

class DeviceBench {
 public:
  DeviceBench(const std::string& device, int64_t tokens, bool json)
      : tokens_(tokens),
        json_(json),
        device_(open_device(
            device,
            {.threads = 2, .isa = choose_isa("auto"), .environments = python_environments()})),
        memory_("device", device_->make_backing(), 0),
        ops_(device_->make_ops(memory_)),
        scratch_(memory_, Purpose::workspace, int64_t{256} << 20) {}

  void run(const std::string& part) {
    if (part == "copies") return copies();
    if (part == "rows") return rows();
    if (part == "gemm") return products();
    if (part == "int8") return products_of_bytes();
    attention();
  }

 private:
  OwnedTensor take(DType dtype, int64_t rows, int64_t cols) {
    return {memory_, Purpose::activations, dtype, {rows, cols}};
  }
  // Of values in [-1, 1), block after block the same.
  OwnedTensor filled_there(DType dtype, int64_t rows, int64_t cols) {
    OwnedTensor out = take(dtype, rows, cols);
    const int64_t at_once = std::clamp(kBlockElements / cols, int64_t{1}, rows);
    const OwnedTensor block = filled(host_, dtype, at_once, cols);
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t end = std::min(rows, row + at_once);
      ops_->copy(out.view().rows(row, end), block.view().rows(0, end - row));
    }
    return out;
  }
  OwnedTensor indices_there(const std::vector<int32_t>& values) {
    const auto count = static_cast<int64_t>(values.size());
    OwnedTensor out(memory_, Purpose::activations, DType::i32, {count});
    ops_->copy(out.view(), Tensor(const_cast<int32_t*>(values.data()), DType::i32, {count}));
    return out;
  }

  // Seconds of a run, the median of as many as take 0.1 s, at least three.
  template <class Body>
  double seconds_of(const Body& body) {
    const auto once = [&] {
      ops_->mark();
      const double begin = clock_seconds(CLOCK_MONOTONIC);
      body();
      ops_->mark();
      if (ops_->has_marks()) return ops_->seconds_between_marks().front();
      ops_->finish();
      return clock_seconds(CLOCK_MONOTONIC) - begin;
    };
    once();  // chooses algorithms, loads code
    const double first = once();
    std::vector<double> times;
    for (int64_t left = std::clamp<int64_t>(std::llround(0.1 / std::max(first, 1e-6)), 3, 50);
         left > 0; --left) {
      times.push_back(once());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void report(const char* part, const std::string& name, double seconds, double amount,
              const char* unit, double scale) const {
    const double rate = amount / seconds / scale;
    if (json_) {
      fmt::print("{}\n", JsonObject()
                             .add("bench", part)
                             .add("name", name)
                             .add("microseconds", 1e6 * seconds)
                             .add(unit, rate)
                             .text());
    } else {
      fmt::print("{:<10} {:<48} {:>10.1f} us {:>9.1f} {}\n", part, name, 1e6 * seconds, rate, unit);
    }
    std::fflush(stdout);  // what comes next may be the last
  }
  template <class Body>
  void measure_bytes(const char* part, const std::string& name, double bytes, const Body& body) {
    report(part, name, seconds_of(body), bytes, "GB/s", 1e9);
  }
  template <class Body>
  void measure_operations(const char* part, const std::string& name, double operations,
                          const Body& body) {
    report(part, name, seconds_of(body), operations, "TFLOP/s", 1e12);
  }

  void copies() {
    const int64_t elements = tokens_ * 4096;
    const OwnedTensor there = filled_there(DType::f32, tokens_, 4096);
    const OwnedTensor other = take(DType::f32, tokens_, 4096);
    const OwnedTensor here = filled(host_, DType::f32, tokens_, 4096);
    const auto bytes = 4.0 * static_cast<double>(elements);
    measure_bytes("copies", "host to device", bytes,
                  [&] { ops_->copy(there.view(), here.view()); });
    measure_bytes("copies", "device to host", bytes,
                  [&] { ops_->copy(here.view(), there.view()); });
    measure_bytes("copies", "within the device, read and written", 2.0 * bytes,
                  [&] { ops_->copy(other.view(), there.view()); });
    measure_bytes("copies", "zero", bytes, [&] { ops_->zero(other.view()); });
  }

  void rows() {
    norms(1536);
    norms(4096);
    swiglu(8960);
    loss();
    optimizers();
    formats();
  }

  // Bytes an element, of `count` of them.
  template <class Kernel>
  void row_kernel(const std::string& name, double bytes, int64_t count, const Kernel& kernel,
                  int64_t rows) {
    measure_bytes("rows", name, bytes * static_cast<double>(count),
                  [&] { ops_->launch(kernel, rows); });
  }

  void norms(int64_t hidden) {
    const int64_t count = tokens_ * hidden;
    const OwnedTensor x = filled_there(DType::f32, tokens_, hidden);
    const OwnedTensor dx = filled_there(DType::f32, tokens_, hidden);
    const OwnedTensor dy = filled_there(DType::f32, tokens_, hidden);
    const OwnedTensor y = take(DType::bf16, tokens_, hidden);
    const OwnedTensor weight = filled_there(DType::f32, 1, hidden);
    const OwnedTensor rstd = take(DType::f32, 1, tokens_);
    row_kernel(
        fmt::format("RmsNormForward, f32 to bf16, {}", hidden), 6, count,
        RmsNormForwardF32Bf16{x.view().data<float>(), weight.view().data<float>(),
                              y.view().data<bf16>(), rstd.view().data<float>(), hidden, 1e-5f},
        tokens_);
    row_kernel(fmt::format("RmsNormBackward, {}", hidden), 16, count,
               RmsNormBackwardF32{x.view().data<float>(), weight.view().data<float>(),
                                  rstd.view().data<float>(), dy.view().data<float>(),
                                  dx.view().data<float>(), hidden},
               tokens_);
    row_kernel(fmt::format("Convert, f32 to bf16, {}", hidden), 6, count,
               ConvertF32Bf16{x.view().data<float>(), nullptr, y.view().data<bf16>(), hidden,
                              hidden, hidden},
               tokens_);
  }

  void swiglu(int64_t width) {
    const int64_t count = tokens_ * width;
    const OwnedTensor gate = filled_there(DType::bf16, tokens_, width);
    const OwnedTensor up = filled_there(DType::bf16, tokens_, width);
    const OwnedTensor h = filled_there(DType::bf16, tokens_, width);
    const OwnedTensor dup = take(DType::bf16, tokens_, width);
    row_kernel(fmt::format("SwigluForward, bf16, {}", width), 6, count,
               SwigluForwardBf16{gate.view().data<bf16>(), up.view().data<bf16>(),
                                 h.view().data<bf16>(), width},
               tokens_);
    row_kernel(
        fmt::format("SwigluBackward, bf16, {}", width), 10, count,
        SwigluBackwardBf16{gate.view().data<bf16>(), up.view().data<bf16>(), h.view().data<bf16>(),
                           h.view().data<bf16>(), dup.view().data<bf16>(), width},
        tokens_);
  }

  void loss() {
    const int64_t rows = std::max<int64_t>(1, tokens_ / 16);
    const OwnedTensor logits = filled_there(DType::f32, rows, kVocab);
    const OwnedTensor gradient = take(DType::bf16, rows, kVocab);
    const OwnedTensor losses = take(DType::f32, 1, rows);
    const OwnedTensor targets = indices_there(std::vector<int32_t>(static_cast<size_t>(rows), 7));
    const OwnedTensor scalars(memory_, Purpose::activations, DType::u8, {sizeof(StepScalars)});
    row_kernel(
        fmt::format("SoftmaxCrossEntropy, f32 to bf16, {}", kVocab), 6, rows * kVocab,
        SoftmaxCrossEntropyBf16{logits.view().data<float>(), targets.view().data<int32_t>(),
                                losses.view().data<float>(), gradient.view().data<bf16>(),
                                static_cast<const StepScalars*>(scalars.view().raw()), kVocab},
        rows);
  }

  void optimizers() {
    const int64_t count = tokens_ * 4096;
    const OwnedTensor p = filled_there(DType::f32, tokens_, 4096);
    const OwnedTensor g = filled_there(DType::f32, tokens_, 4096);
    const OwnedTensor scalars(memory_, Purpose::activations, DType::u8, {sizeof(StepScalars)});
    const OwnedTensor there(memory_, Purpose::activations, DType::u8, {sizeof(AdamwFactors)});
    AdamwFactors host{1, 1.0f, 1e-5f, 1.0f, 1.0f, 1};
    ops_->copy(there.view(), Tensor(&host, DType::u8, {sizeof host}));
    const auto* factors = static_cast<const AdamwFactors*>(there.view().raw());
    const AdamwRule rule{0.1f, 0.999f, 0.001f, 1e-8f};
    {
      const OwnedTensor m = take(DType::f32, tokens_, 4096);
      const OwnedTensor v = take(DType::f32, tokens_, 4096);
      row_kernel("AdamwUpdate", 32, count,
                 AdamwUpdate{factors, p.view().data<float>(), g.view().data<float>(),
                             m.view().data<float>(), v.view().data<float>(), count, rule},
                 ceil_div(count, AdamwUpdate::kChunk));
    }
    const int64_t blocks = ceil_div(count, kMomentBlock);
    const OwnedTensor m = take(DType::u8, tokens_, 4096);
    const OwnedTensor v = take(DType::u8, tokens_, 4096);
    const OwnedTensor m_absmax = take(DType::f32, 1, blocks);
    const OwnedTensor v_absmax = take(DType::f32, 1, blocks);
    const Adamw8bitUpdate update{signed_dynamic_map(),
                                 unsigned_dynamic_map(),
                                 static_cast<const StepScalars*>(scalars.view().raw()),
                                 factors,
                                 p.view().data<float>(),
                                 g.view().data<float>(),
                                 m.view().data<uint8_t>(),
                                 v.view().data<uint8_t>(),
                                 m_absmax.view().data<float>(),
                                 v_absmax.view().data<float>(),
                                 count,
                                 0,
                                 rule};
    row_kernel("Adamw8bitUpdate", 20, count, update, update.rows());
  }

  // A weight of 14336 x 4096 brought into bf16: bytes of the storage and of the result.
  void formats() {
    constexpr int64_t kRows = 14336, kCols = 4096;
    const OwnedTensor master = filled_there(DType::f32, kRows, kCols);
    const OwnedTensor out = take(DType::bf16, kRows, kCols);
    for (const char* name : {"bf16", "int8", "int8_row", "nf4"}) {
      const int64_t before = memory_.ledger().total;
      Weight weight(memory_, {"a.weight", kRows, kCols}, find_format(name));
      const auto stored = static_cast<double>(memory_.ledger().total - before);
      weight.publish(*ops_, master.view(), {}, scratch_);
      measure_bytes("rows", fmt::format("decode {} to bf16", name),
                    stored + 2.0 * static_cast<double>(kRows * kCols),
                    [&] { weight.decode(*ops_, 0, kRows, out.view()); });
    }
  }

  void product(const std::string& name, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
               DType operands, DType result) {
    const OwnedTensor a = filled_there(operands, ta ? k : m, ta ? m : k);
    const OwnedTensor b = filled_there(operands, tb ? n : k, tb ? k : n);
    const OwnedTensor c = take(result, m, n);
    measure_operations("gemm",
                       fmt::format("{} {} x {} x {}, {} to {}", name, m, n, k, dtype_name(operands),
                                   dtype_name(result)),
                       2.0 * static_cast<double>(m) * static_cast<double>(n * k), [&] {
                         ops_->gemm(a.view(), Transpose{ta}, b.view(), Transpose{tb}, c.view(),
                                    Accumulate::no);
                       });
  }

  // Of weights [out, in]: Qwen2.5 1.5B's and Llama 8B's.
  void products() {
    struct Shape {
      int64_t out, in;
    };
    for (const Shape& w : {Shape{1536, 1536}, Shape{8960, 1536}, Shape{1536, 8960},
                           Shape{4096, 4096}, Shape{14336, 4096}, Shape{4096, 14336}}) {
      product("forward", tokens_, w.out, w.in, false, true, DType::bf16, DType::bf16);
      product("dx", tokens_, w.in, w.out, false, false, DType::bf16, DType::bf16);
      product("dW", w.out, w.in, tokens_, true, false, DType::bf16, DType::f32);
    }
    product("logits", std::max<int64_t>(1, tokens_ / 8), kVocab, 1536, false, true, DType::bf16,
            DType::f32);
    product("forward", tokens_, 8960, 1536, false, true, DType::f32, DType::f32);
  }

  void product_of_bytes(const std::string& name, int64_t m, int64_t n, int64_t k, bool tb) {
    const OwnedTensor a = filled_there(DType::i8, m, k);
    const OwnedTensor a_scales = filled_there(DType::f32, m, ceil_div(k, kInt8Group));
    const OwnedTensor b = filled_there(DType::i8, tb ? n : k, tb ? k : n);
    const OwnedTensor b_scales = filled_there(DType::f32, 1, n);
    const OwnedTensor c = take(DType::f32, m, n);
    const Int8Rows left{a.view(), a_scales.view()};
    const Int8Rows right{b.view(), tb ? b_scales.view().reshaped({n}) : Tensor()};
    report("int8", fmt::format("{} {} x {} x {}", name, m, n, k), seconds_of([&] {
             ops_->gemm_int8(left, right, Transpose{tb}, c.view(), Accumulate::no, scratch_);
           }),
           2.0 * static_cast<double>(m) * static_cast<double>(n * k), "TOPS", 1e12);
  }

  // Of Qwen2.5 1.5B's widest weights, and one that no shape favours.
  void products_of_bytes() {
    for (const bool tb : {true, false}) {
      const char* name = tb ? "forward" : "dx";
      product_of_bytes(name, tokens_, 8960, 1536, tb);
      product_of_bytes(name, tokens_, 1536, 8960, tb);
      product_of_bytes(name, 4096, 4096, 4096, tb);
    }
  }

  void attention() {
    struct Heads {
      int64_t dim, count, kv_count;
    };
    for (const Heads& heads : {Heads{64, 14, 2}, Heads{128, 32, 8}, Heads{256, 8, 4}}) {
      for (const int64_t length : {1024, 2048, 8192}) {
        if (length <= tokens_) attention_of(heads.dim, heads.count, heads.kv_count, length);
      }
    }
  }

  void attention_of(int64_t dim, int64_t heads, int64_t kv_heads, int64_t length) {
    const int64_t sequences = tokens_ / length, tokens = sequences * length;
    std::vector<int32_t> ends;
    for (int64_t i = 0; i <= sequences; ++i) ends.push_back(static_cast<int32_t>(i * length));
    const OwnedTensor cu_seqlens = indices_there(ends);
    const DType type = ops_->has_bf16_attention() ? DType::bf16 : DType::f32;
    const OwnedTensor q = filled_there(type, tokens, heads * dim);
    const OwnedTensor k = filled_there(type, tokens, kv_heads * dim);
    const OwnedTensor v = filled_there(type, tokens, kv_heads * dim);
    const OwnedTensor dout = filled_there(type, tokens, heads * dim);
    const OwnedTensor out = take(type, tokens, heads * dim);
    const OwnedTensor lse = take(DType::f32, heads, tokens);
    const OwnedTensor dq = take(DType::f32, tokens, heads * dim);
    const OwnedTensor dk = take(DType::f32, tokens, kv_heads * dim);
    const OwnedTensor dv = take(DType::f32, tokens, kv_heads * dim);
    const AttentionShape shape{cu_seqlens.view(),
                               cu_seqlens.view(),
                               sequences,
                               heads,
                               kv_heads,
                               dim,
                               1.0f / std::sqrt(static_cast<float>(dim)),
                               0,
                               DType::bf16};
    // Two products over the causal half forward, five backward, as papers count them.
    const double product = static_cast<double>(tokens * length) * static_cast<double>(heads * dim);
    const auto name = [&](const char* what) {
      return fmt::format("{}, {} heads of {}, {} x {}", what, heads, dim, sequences, length);
    };
    measure_operations("attention", name("forward"), 2.0 * product, [&] {
      ops_->attention_forward(shape, q.view(), k.view(), v.view(), out.view(), lse.view(),
                              scratch_);
    });
    measure_operations("attention", name("backward"), 5.0 * product, [&] {
      ops_->attention_backward(shape, q.view(), k.view(), v.view(), out.view(), lse.view(),
                               dout.view(), dq.view(), dk.view(), dv.view(), scratch_);
    });
  }

  int64_t tokens_;
  bool json_;
  std::unique_ptr<Device> device_;
  Memory host_{"host", make_host_backing(), 0};
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  Arena scratch_;
};

int run(const std::vector<std::string>& arguments) {
  const std::set<std::string> known = {"copies", "rows", "gemm", "int8", "attention"};
  std::vector<std::string> parts;
  std::string device = "cpu";
  int64_t tokens = 16384;
  bool json = false;
  for (const std::string& argument : arguments) {
    if (known.contains(argument)) {
      parts.push_back(argument);
    } else if (argument.starts_with("device=")) {
      device = argument.substr(7);
    } else if (argument.starts_with("--tokens=")) {
      tokens = std::max(1, std::atoi(argument.c_str() + 9));
    } else if (argument == "--json") {
      json = true;
    } else {
      fail(ErrorKind::usage, "unknown argument {}", argument);
    }
  }
  DeviceBench bench(device, tokens, json);
  for (const std::string& part : parts) bench.run(part);
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("device_bench", [&] {
    return jackscrew::run({argv + 1, argv + argc});
  });
}
