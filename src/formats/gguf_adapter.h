// LoRA adapters as GGUF files, which llama.cpp applies to a model at run time (--lora).
#pragma once

#include <string>

#include "base/file.h"
#include "formats/peft.h"
#include "model/config.h"
#include "quant/format.h"

namespace jackscrew {

// Writes an adapter of a model with that configuration; `name` is for display, `format` is f32 or
// f16. A factor is named after its weight in GGUF, with ".lora_a" or ".lora_b" appended; rows of B
// are in the order of the weight's rows. llama.cpp has one alpha and divides it by each rank: where
// a module's scale differs from that, or alpha is no normal number of f32, B is multiplied by the
// ratio. Returns the bytes of the file.
// Throws Error(model) before there is a file of that name: naming what GGUF cannot hold (DoRA's
// lengths, whole modules, other kinds of adapters) or the model has no place for, and for values
// that the format cannot hold, or only as zeros; a failing disk is Error(generic).
int64_t write_gguf_adapter(const fs::path& path, const ModelConfig& config, const std::string& name,
                           const PeftAdapter& adapter, const Format& format);

}  // namespace jackscrew
