// How matrices are rounded and stored in files: one class for each layout that quantize writes.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "conversion/hessian.h"
#include "conversion/quantise_checkpoint.h"
#include "formats/quantised_model_writer.h"

namespace jackscrew {

// A matrix to be rounded, and the statistics of its inputs.
struct MatrixToRound {
  Ops& ops;
  Memory& memory;
  const WeightSpec& weight;           // of `w`; the head has the name and the module of lm_head
  Tensor w;                           // f32 [rows, cols], contiguous, its columns in `order`
  Tensor u;                           // InverseFactor's, in the same order; empty: no compensation
  const std::vector<int32_t>& order;  // of its columns; empty: their own
  double energy;                      // of its outputs: the sum of their squares
};

class Rounder {
 public:
  virtual ~Rounder() = default;

  // Whether a weight is quantised; others stay plain.
  virtual bool rounds(const WeightSpec& weight) const = 0;
  // In which order columns are rounded, whether later ones compensate for the errors of earlier
  // ones, and the damping of the Hessian for that.
  virtual ColumnOrder column_order() const = 0;
  virtual bool compensates() const = 0;
  virtual double damping() const = 0;

  // The tensors that a weight is stored in. Throws Error(model) where the layout cannot hold it. If
  // measures(), those of the largest files until choose().
  virtual std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const = 0;
  // An upper bound of the bytes of these weights together; their sum where nothing is chosen.
  virtual int64_t most_bytes(const std::vector<WeightSpec>& weights) const {
    int64_t bytes = 0;
    for (const WeightSpec& weight : weights) bytes = checked_add(bytes, bytes_of(specs(weight)));
    return bytes;
  }
  // Rounds a matrix: w becomes the values that the returned tensors stand for.
  virtual std::vector<TensorBytes> round(const MatrixToRound& matrix) const = 0;
  // The bytes that round() books of its memory; the most of all ways, if measures().
  virtual int64_t round_bytes(const WeightSpec& weight) const = 0;
  // The most bytes that round() holds in vectors: codes, and the tensors that it returns. The
  // caller books it, also while it measures.
  virtual int64_t held_bytes(const WeightSpec& weight) const = 0;

  // All settings of the rounder that determine what it writes, but for its damping.
  virtual QuantisationSettings settings() const = 0;
  // Lines for people about what it writes.
  virtual std::vector<std::string> notes(const std::vector<WeightSpec>& weights) const = 0;

  // Whether it chooses among several ways of rounding each block matrix. All of them are then
  // measured once, over the unquantised model, before any matrix is rounded for good.
  virtual bool measures() const { return false; }
  // The squared error of the outputs in each of the ways, relative to `energy`. Leaves w as it is.
  virtual std::vector<double> measure(const MatrixToRound& /*matrix*/) const { return {}; }
  // The bytes that measure() books.
  virtual int64_t measure_bytes(const WeightSpec& /*weight*/) const { return 0; }
  // Chooses for all matrices at once, from the results of measure(), keyed by the weight's name.
  // Calls check(), if there is one, as it goes on: what that throws ends it.
  virtual void choose(const std::map<std::string, std::vector<double>>& /*costs*/,
                      const std::function<void()>& /*check*/) {}
};

// Rounds to a layout of quantised files, which says what it is in a quantization_config.
class LayoutRounder : public Rounder {
 public:
  // Given the amount of calibration text.
  virtual nlohmann::json config(int64_t sequences, int64_t sequence_len) const = 0;
};

}  // namespace jackscrew
