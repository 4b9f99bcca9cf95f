// Describes a weight before it exists: its name, its shape and what the model uses it for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jackscrew {

// `product`: a vector that a product keeps beside a weight, such as step sizes; not part of the
// model.
enum class WeightKind { linear, embedding, norm, bias, product };

struct WeightSpec {
  std::string name;  // the Hugging Face name of the tensor
  int64_t rows = 0;  // out; 1 for a vector
  int64_t cols = 0;  // in
  WeightKind kind = WeightKind::linear;
  int64_t layer = -1;       // block number; -1 outside the blocks
  std::string module = {};  // "q_proj" (its bias too), "embed_tokens", "lm_head", "norm" ...
  // For what a product keeps:
  double learning_rate = 0.0;     // its own; 0: the run's
  bool begins_from_data = false;  // see Product::add_parameter_start

  int64_t size() const { return rows * cols; }
  // As files declare it.
  std::vector<int64_t> shape() const {
    return is_vector() ? std::vector{cols} : std::vector{rows, cols};
  }
  // The name of its module: "model.layers.0.mlp.up_proj" for "model.layers.0.mlp.up_proj.weight".
  std::string path() const { return name.substr(0, name.rfind('.')); }
  // Vectors are short, exact, and f32 whatever the storage of the rest.
  bool is_vector() const { return kind != WeightKind::linear && kind != WeightKind::embedding; }
  bool is_block_matrix() const { return kind == WeightKind::linear && layer >= 0; }
};

}  // namespace jackscrew
