// What a run leaves: a Hugging Face model directory, or a PEFT adapter directory.
#pragma once

#include "base/file.h"
#include "text/chat_template.h"
#include "train/session.h"

namespace jackscrew {

// Writes the model, or the adapter if the learner made one, to the top of `output_dir`, with the
// chat template of `format` where that is not the tokenizer's. Each file appears whole or not at
// all; the weights come last. Weights in f32, bf16 and f16 keep their type, others become f32.
void export_result(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                   const ChatFormat& format, const fs::path& output_dir);

// Writes what a stage's learner made as a PEFT adapter directory, whole or not at all. `base_model`
// is what it records as the model that it is for.
void export_adapter(const Stage& stage, Ops& ops, const AdapterDescription& adapter,
                    const std::string& base_model, const fs::path& directory);

// Fills the learner's parameters from a PEFT adapter; restored() must follow. Throws Error(model)
// when they do not match.
void load_adapter(const Stage& stage, Ops& ops, const fs::path& adapter);

// The recipe with the learner options that its PEFT adapter was made with; its own lora_dropout
// stays. Throws Error(usage) where it has another learner or says otherwise, Error(model) where the
// adapter cannot be read.
Recipe with_adapter_options(Recipe recipe);

}  // namespace jackscrew
