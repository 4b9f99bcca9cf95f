// Which layouts have a place for a model's matrices, whose widths may be any.
#pragma once

#include <functional>

#include "model/config.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// Throws Error(model) for a matrix that a layout cannot hold.
using ShapeCheck = std::function<void(const WeightSpec&)>;

// Throws what `check` throws for a matrix of the blocks, with a hint that names what quantize can
// write of this model instead.
void require_shapes(const ModelConfig& config, const ShapeCheck& check);

// Throws what check_gguf_config() throws, with such a hint.
void require_gguf_place(const ModelConfig& config);

// Whether types of GGUF that quantize chooses among (mixed_types) can hold any of the matrices.
bool has_mixed_types(const ModelConfig& config);

// Throws Error(model): none of the matrices can be rounded so. With the same hint.
[[noreturn]] void fail_to_round(const ModelConfig& config);

}  // namespace jackscrew
