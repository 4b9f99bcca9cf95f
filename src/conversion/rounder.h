// How matrices are rounded and what files have of them: one class for each layout that quantize
// writes.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "conversion/hessian.h"
#include "conversion/quantise_checkpoint.h"
#include "formats/quantised_model_writer.h"

namespace jackscrew {

// A matrix about to be rounded, and what its inputs say of that.
struct RoundedMatrix {
  Ops& ops;
  Memory& memory;
  const WeightSpec& weight;           // the head has the name and the module of lm_head
  Tensor w;                           // f32 [rows, cols], contiguous, its columns in `order`
  Tensor u;                           // InverseFactor's, likewise; empty: none is wanted
  const std::vector<int32_t>& order;  // by falling activation; empty: their own
  double energy;                      // of its outputs: the sum of their squares
};

class Rounder {
 public:
  virtual ~Rounder() = default;

  // Whether a weight is rounded; others stay plain.
  virtual bool rounds(const WeightSpec& weight) const = 0;
  // In which order columns are, and whether later ones make up for the errors of earlier ones.
  virtual bool by_activation() const = 0;
  virtual bool compensates() const = 0;
  virtual double damping() const = 0;

  // The tensors that a weight becomes. Throws Error(model) where the layout cannot have it; from a
  // rounder that measures, not before choose().
  virtual std::vector<SafetensorsSpec> specs(const WeightSpec& weight) const = 0;
  // The most bytes that the weights will take together.
  virtual int64_t most_bytes(const std::vector<WeightSpec>& weights) const = 0;
  // Rounds a matrix: w becomes what the tensors stand for.
  virtual std::vector<TensorBytes> round(const RoundedMatrix& matrix) const = 0;

  // All of its own that decides what it writes.
  virtual QuantisationSettings settings() const = 0;
  // What is written of it: the quantization_config for so much text, and lines for people.
  virtual nlohmann::json config(int64_t sequences, int64_t sequence_len) const = 0;
  virtual std::vector<std::string> notes(const std::vector<WeightSpec>& weights) const = 0;

  // Whether it chooses among several ways of rounding a matrix of a block: each is then measured
  // once, over the model as it is, before any is rounded for good.
  virtual bool measures() const { return false; }
  // What of its outputs' energy each of the ways loses. Leaves w as it is.
  virtual std::vector<double> measure(const RoundedMatrix& /*matrix*/) const { return {}; }
  // Chooses for all matrices at once, by what measure() gave of each, by the weight's name.
  virtual void choose(const std::map<std::string, std::vector<double>>& /*costs*/) {}
};

}  // namespace jackscrew
