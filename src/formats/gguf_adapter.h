// LoRA adapters as GGUF files, as llama.cpp applies them to a model while it runs (--lora).
#pragma once

#include <string>

#include "base/file.h"
#include "formats/peft.h"
#include "model/config.h"

namespace jackscrew {

// Writes an adapter of a model with that configuration, f32; `name` is for people. Each factor
// stands under its weight's name in GGUF with ".lora_a" or ".lora_b" behind; rows of B lie as those
// of the weight do. llama.cpp knows one alpha and divides it by each rank: where a module's scale
// is another, it is brought into B. Returns the bytes of the file. Throws Error(model) naming what
// GGUF has no place for (DoRA's lengths, whole modules, other kinds of adapters) and what the model
// has no place for, before anything is written; a failing disk is Error(generic).
int64_t write_gguf_adapter(const fs::path& path, const ModelConfig& config, const std::string& name,
                           const PeftAdapter& adapter);

}  // namespace jackscrew
