// What each storage format costs: its distortion, and the speed of its kernels.
//   format_bench [--clock=wall|cpu] [--only=TEXT] [--rows=N] [model=PATH] [threads=4] [isa=LEVEL]
//                [--json]
// Without a model: normal numbers [N, 2048], N being 2048. With one: the linears of its blocks, the
// noise of all together, speeds on the largest. Formats that cannot be encoded are filled with
// bytes that stand for finite numbers, packed ones with codes (packed_samples.h): they have speeds
// only. Elements per second count the matrix's elements; bytes per second those of the storage that
// a single token's product reads, with their share of the speed at which the threads read memory:
// of a matrix that no cache holds (--rows=32768), how near the product is to what memory allows.
// --only: formats whose name contains the text, or with
// --only=read those that cannot be encoded.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/json_object.h"
#include "bench/machine.h"
#include "bench/packed_samples.h"
#include "cli/arguments.h"
#include "kernels/cpu/cpu_ops.h"
#include "model/init.h"
#include "quant/exl3.h"
#include "quant/fp8.h"
#include "quant/weight.h"

namespace jackscrew {
namespace {

// The seconds that one of many runs takes, in the fastest of three rounds. A round is long against
// the ticks in which systems count processor time (4 ms).
template <class Work>
double fastest(const BenchClock& clock, const Work& work) {
  constexpr double kRound = 0.2;
  double best = std::numeric_limits<double>::infinity();
  work();
  for (int round = 0; round < 3; ++round) {
    const double begin = clock.seconds();
    double seconds = 0.0;
    int runs = 0;
    for (; seconds < kRound; ++runs) {
      work();
      seconds = clock.seconds() - begin;
    }
    best = std::min(best, seconds / runs);
  }
  return best;
}

struct Matrix {
  OwnedTensor values;  // f32 [rows, cols]
  int64_t rows() const { return values.view().rows(); }
  int64_t cols() const { return values.view().cols(); }
};

std::vector<Matrix> matrices(const Recipe& recipe, int64_t normal_rows, Memory& memory, Ops& ops) {
  std::vector<Matrix> out;
  const auto take = [&](int64_t rows, int64_t cols) {
    return OwnedTensor(memory, Purpose::masters, DType::f32, {rows, cols});
  };
  if (recipe.model.empty()) {
    ModelConfig config;
    config.initializer_range = 1.0;
    out.push_back({take(normal_rows, 2048)});
    init_rows(ops, config, recipe.seed, {"normal", normal_rows, 2048}, 0, out[0].values.view());
    return out;
  }
  const ModelFiles files = open_model(recipe.model);
  if (files.source == nullptr) fail(ErrorKind::usage, "{} has no weights", recipe.model);
  Arena staging(memory, Purpose::staging, int64_t{64} << 20);
  for (const std::string& name : files.source->names()) {
    if (!name.starts_with("model.layers.") || !name.ends_with("_proj.weight")) continue;
    const StoredTensor& stored = *files.source->find(name);
    const int64_t rows = stored.shape[0];
    const int64_t cols = stored.shape[1];
    const Weight shape(memory, {name, rows, cols}, find_format("bf16"));
    out.push_back({take(rows, cols)});
    shape.read_original(ops, stored, out.back().values.view(), staging);
  }
  return out;
}

struct Costs {
  double bits = 0;   // per element
  double noise = 0;  // sum of squared differences
  double encode = 0, stochastic = 0, decode = 0, decode_bf16 = 0, multiply = 0;  // seconds
  double elements = 0, bytes = 0;                                                // of the largest
};

// Scales of these are normal numbers below 2, as f16 and as f32: products with numbers that are not
// normal would take a CPU many times as long.
void fill_finite(const Tensor& bytes) {
  for (int64_t i = 0; i < bytes.size(); ++i) {
    bytes.data<uint8_t>()[i] = static_cast<uint8_t>(48 + i * 37 % 13);
  }
}

double squared_difference(const Tensor& a, const Tensor& b) {
  double sum = 0.0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double difference =
        static_cast<double>(a.data<float>()[i]) - static_cast<double>(b.data<float>()[i]);
    sum += difference * difference;
  }
  return sum;
}

// A format, of which one that files describe depends on the matrix.
struct Subject {
  const char* name;
  const Format* format = nullptr;
  const PackedSample* sample = nullptr;
  // One that a file's tensors describe and that is kept as it lies there.
  FormatPointer (*instance)(int64_t rows, int64_t cols) = nullptr;

  bool can_encode() const { return format != nullptr && format->can_encode(); }
};

std::vector<Subject> subjects() {
  std::vector<Subject> out;
  for (const Format* format : all_formats()) out.push_back({format->name(), format});
  for (const PackedSample& sample : packed_samples())
    out.push_back({sample.name, nullptr, &sample});
  const auto add = [&](const char* name, FormatPointer (*instance)(int64_t, int64_t)) {
    out.push_back({.name = name, .instance = instance});
  };
  add("fp8_rows", [](int64_t, int64_t cols) {
    return make_fp8_format({PackedScale::bf16, 1, cols});
  });
  add("fp8_blocks", [](int64_t, int64_t) { return make_fp8_format({PackedScale::f32, 128, 128}); });
  add("exl3_4_mcg", [](int64_t rows, int64_t cols) {
    return make_exl3_format({rows, cols, 4, Exl3Codebook::mcg});
  });
  add("exl3_3_mul1", [](int64_t rows, int64_t cols) {
    return make_exl3_format({rows, cols, 3, Exl3Codebook::mul1});
  });
  return out;
}

Weight make_weight(const Subject& subject, const Matrix& matrix, Memory& memory, Ops& ops) {
  const WeightSpec spec{"w", matrix.rows(), matrix.cols()};
  if (subject.format != nullptr) return {memory, spec, *subject.format};
  if (subject.instance != nullptr) return {memory, spec, subject.instance(spec.rows, spec.cols)};
  const StoredTensor stored = packed_sample(*subject.sample, spec.rows, spec.cols);
  Weight weight(memory, spec, stored.format);
  Arena staging(memory, Purpose::staging, 0);
  weight.load(ops, stored, staging);
  return weight;
}

Costs measure(const Subject& subject, const std::vector<Matrix>& all, Memory& memory, Ops& ops,
              const BenchClock& clock) {
  Costs out;
  Arena scratch(memory, Purpose::workspace, int64_t{32} << 20);
  double bytes = 0.0;
  double elements = 0.0;
  for (const Matrix& matrix : all) {
    const int64_t rows = matrix.rows();
    const int64_t cols = matrix.cols();
    Weight weight = make_weight(subject, matrix, memory, ops);
    const Storage storage = weight.storage();
    const OwnedTensor decoded(memory, Purpose::workspace, DType::f32, {rows, cols});
    const auto publish = [&](const Rounding& rounding) {
      weight.publish(ops, matrix.values.view(), rounding, scratch);
    };
    bytes += static_cast<double>(storage.bytes.bytes());
    elements += static_cast<double>(weight.size());
    if (subject.can_encode()) {
      publish({});
      weight.decode(ops, 0, rows, decoded.view());
      out.noise += squared_difference(decoded.view(), matrix.values.view());
    }
    if (static_cast<double>(weight.size()) <= out.elements) continue;
    out.elements = static_cast<double>(weight.size());
    out.bytes = static_cast<double>(storage.bytes.bytes());
    const OwnedTensor narrow_values(memory, Purpose::workspace, DType::bf16, {rows, cols});
    const OwnedTensor x = filled(memory, DType::f32, 1, cols);
    const OwnedTensor y(memory, Purpose::workspace, DType::f32, {1, rows});
    if (subject.can_encode()) {
      StepScalars scalars{};
      out.stochastic = fastest(clock, [&] { publish({true, &scalars, 1}); });
      out.encode = fastest(clock, [&] { publish({}); });
    } else if (subject.sample == nullptr) {
      fill_finite(storage.bytes);
    }
    out.decode = fastest(clock, [&] { weight.decode(ops, 0, rows, decoded.view()); });
    out.decode_bf16 = fastest(clock, [&] { weight.decode(ops, 0, rows, narrow_values.view()); });
    out.multiply =
        fastest(clock, [&] { weight.multiply(ops, x.view(), y.view(), Accumulate::no, scratch); });
  }
  out.bits = 8.0 * bytes / elements;
  return out;
}

bool fits(const Subject& subject, const std::vector<Matrix>& all) {
  if (subject.sample != nullptr) return true;
  try {
    for (const Matrix& matrix : all) {
      const FormatPointer format = subject.format != nullptr
                                       ? unowned(*subject.format)
                                       : subject.instance(matrix.rows(), matrix.cols());
      format->storage_bytes(matrix.rows(), matrix.cols());
    }
    return true;
  } catch (const Error&) {
    return false;  // rows that its blocks do not divide
  }
}

int run(std::vector<std::string> arguments) {
  BenchClock clock = take_clock(arguments);
  std::string only;
  int64_t rows = 2048;
  std::erase_if(arguments, [&](const std::string& argument) {
    const bool names = argument.starts_with("--only=");
    const bool size = argument.starts_with("--rows=");
    if (names) only = argument.substr(7);
    if (size) rows = std::max<int64_t>(1, std::atoll(argument.c_str() + 7));
    return names || size;
  });
  arguments.insert(arguments.begin(), "threads=2");  // what is written later wins
  const Recipe recipe = read_arguments(arguments, 0, "format_bench");
  clock.threads = narrow<int>(recipe.threads);
  const auto ops = make_cpu_ops(clock.threads, choose_isa(recipe.isa));
  Memory memory("host", make_host_backing(), 0);
  const std::vector<Matrix> all = matrices(recipe, rows, memory, *ops);
  double signal = 0.0;
  for (const Matrix& matrix : all) {
    const OwnedTensor zero(memory, Purpose::workspace, DType::f32, {matrix.rows(), matrix.cols()});
    signal += squared_difference(matrix.values.view(), zero.view());
  }
  const double floor = 1e-9 * read_bandwidth(clock);
  if (!recipe.json) {
    fmt::print("{}, {} threads, {}, {} time; Gelements/s (the product: GB/s of {:.1f})\n",
               recipe.model.empty() ? "normal numbers" : recipe.model, recipe.threads,
               isa_name(ops->isa()), clock.name(), floor);
    fmt::print("{:<13}{:>8}{:>9}{:>9}{:>11}{:>9}{:>9}{:>9}{:>7}\n", "format", "bits", "SNR dB",
               "encode", "stochastic", "decode", "to bf16", "product", "%");
  }
  for (const Subject& subject : subjects()) {
    const bool wanted = only == "read"
                            ? !subject.can_encode()
                            : std::string_view(subject.name).find(only) != std::string_view::npos;
    if (!wanted || !fits(subject, all)) continue;
    const Costs costs = measure(subject, all, memory, *ops, clock);
    const double snr = 10.0 * std::log10(signal / costs.noise);  // infinite for f32
    const auto rate = [&](double seconds) {
      return seconds > 0.0 ? 1e-9 * costs.elements / seconds : 0.0;
    };
    const double bandwidth = 1e-9 * costs.bytes / costs.multiply;
    if (recipe.json) {
      JsonObject object;
      object.add("bench", "format").add("format", subject.name).add("bits", costs.bits);
      if (subject.can_encode()) {
        if (std::isfinite(snr)) object.add("snr", snr);
        object.add("encode", rate(costs.encode)).add("stochastic", rate(costs.stochastic));
      }
      object.add("decode", rate(costs.decode))
          .add("decode_bf16", rate(costs.decode_bf16))
          .add("product_bandwidth", bandwidth)
          .add("bandwidth", floor);
      fmt::print("{}\n", object.text());
    } else if (subject.can_encode()) {
      fmt::print("{:<13}{:>8.3f}{:>9.2f}{:>9.2f}{:>11.2f}{:>9.2f}{:>9.2f}{:>9.2f}{:>7.0f}\n",
                 subject.name, costs.bits, snr, rate(costs.encode), rate(costs.stochastic),
                 rate(costs.decode), rate(costs.decode_bf16), bandwidth, 100.0 * bandwidth / floor);
    } else {
      fmt::print("{:<13}{:>8.3f}{:>9}{:>9}{:>11}{:>9.2f}{:>9.2f}{:>9.2f}{:>7.0f}\n", subject.name,
                 costs.bits, "", "", "", rate(costs.decode), rate(costs.decode_bf16), bandwidth,
                 100.0 * bandwidth / floor);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("format_bench", [&] {
    return jackscrew::run({argv + 1, argv + argc});
  });
}
