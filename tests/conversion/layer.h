// A layer about to be rounded.
#pragma once

#include <random>
#include <vector>

#include "conversion/hessian.h"
#include "formats/safetensors.h"
#include "quant/stored_rows.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

// A weight [rows, cols] and the inputs of its layer, which depend on each other as those of models.
struct Layer {
  Layer(int64_t rows_of, int64_t cols_of, int threads = 2)
      : spec{"model.layers.0.mlp.up_proj.weight",
             rows_of,
             cols_of,
             WeightKind::linear,
             0,
             "up_proj"},
        ops(make_test_ops(threads)),
        w(memory, Purpose::weights, DType::f32, {rows_of, cols_of}),
        hessian(memory, cols_of) {
    std::mt19937 random(7);
    const auto normal = [&] {
      float sum = 0.0f;  // of twelve, less six: the same on every library
      for (int i = 0; i < 12; ++i) sum += static_cast<float>(random() % 65536) / 65536.0f;
      return sum - 6.0f;
    };
    for (int64_t i = 0; i < w.view().size(); ++i) w.view().data<float>()[i] = 0.05f * normal();
    const int64_t tokens = 2 * cols_of;
    const OwnedTensor x(memory, Purpose::activations, DType::f32, {tokens, cols_of});
    for (int64_t t = 0; t < tokens; ++t) {
      const float common = normal();
      for (int64_t i = 0; i < cols_of; ++i) {
        x.view().data<float>()[t * cols_of + i] =
            (normal() + common) * (0.2f + static_cast<float>(i % 7));
      }
    }
    hessian.add(*ops, x.view().rows(0, tokens / 2));
    hessian.add(*ops, x.view().rows(tokens / 2, tokens));
    hessian.finish("a test");
  }

  std::vector<float> values() const {
    return {w.view().data<float>(), w.view().data<float>() + w.view().size()};
  }
  // trace(D H Dᵀ) of the change from `before`, in double.
  double error(const std::vector<float>& before) const {
    const std::vector<float> now = values();
    const int64_t cols = spec.cols;
    double sum = 0.0;
    for (int64_t row = 0; row < spec.rows; ++row) {
      const auto d = [&](int64_t i) {
        const auto at = static_cast<size_t>(row * cols + i);
        return static_cast<double>(now[at]) - static_cast<double>(before[at]);
      };
      for (int64_t i = 0; i < cols; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          sum += d(i) * d(j) * static_cast<double>(hessian.matrix().data<float>()[i * cols + j]);
        }
      }
    }
    return sum;
  }

  WeightSpec spec;
  std::unique_ptr<Ops> ops;
  Memory memory{"host", make_host_backing(), 0};
  OwnedTensor w;
  Hessian hessian;
};

// The layer's weight as our reader finds it in a directory.
inline std::vector<float> stored_values(Layer& layer, const fs::path& directory) {
  const SafetensorsSource source(directory);
  const StoredTensor* stored = source.find(layer.spec.name);
  if (stored == nullptr) return {};
  check_stored(layer.spec, *stored);
  const int64_t rows = layer.spec.rows, cols = layer.spec.cols;
  const OwnedTensor bytes(layer.memory, Purpose::staging, DType::u8,
                          {StoredRows::bytes_for(*stored, rows, cols)});
  const OwnedTensor out(layer.memory, Purpose::staging, DType::f32, {rows, cols});
  StoredRows(*layer.ops, *stored, rows, cols, bytes.view()).decode(0, rows, out.view());
  return {out.view().data<float>(), out.view().data<float>() + rows * cols};
}

}  // namespace jackscrew
