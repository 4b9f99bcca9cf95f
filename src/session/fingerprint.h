// Fingerprints of a model, by which ranks on several machines check that they have the same one,
// and checkpoints that theirs is still there; and a checksum of all of it.
#pragma once

#include <string>

#include "base/file.h"
#include "base/progress_callback.h"
#include "learners/learner.h"
#include "session/model_files.h"
#include "text/chat/chat_format.h"

namespace jackscrew {

// A checksum of the configuration, of the names, shapes, formats, settings (StoredTensor) and sizes
// of all its weights, of parts of each one from its first bytes to its last, and of the weights and
// options of an `adapter` (empty: none). Tensors that the model does not need have no part in it,
// here and below. It tells models apart, and trained versions of one model, but not files that
// differ in a few bytes.
uint32_t model_fingerprint(const ModelFiles& files, const fs::path& adapter);

// A checksum of the words of a tokenizer, and of what it does with a text.
uint32_t tokenizer_fingerprint(const Tokenizer& tokenizer);

// A checksum of each thing that a run reads of its model, for people to compare: "configuration
// 01234567, tokenizer 89abcdef, 12 tensors 02468ace". Tokens with names of their own count as a
// part of the chat template that mentions them. With a `learner`, of the tensors that it does not
// change alone: a checkpoint has the others.
std::string inputs_fingerprint(const ModelFiles& files, const Tokenizer& tokenizer,
                               const ChatFormat& format, const Learner* learner = nullptr);

// Follows inputs_fingerprint() where a run begins from other values beside its model. Checksums of
// the weights of an `adapter`, and of the model before it was quantised, ", adapter 01234567,
// original model 89abcdef"; of those that are empty, nothing. Checkpoints need none, as what was
// made of these values is in them.
std::string start_fingerprint(const fs::path& adapter, const std::string& original_model);

// A checksum of the whole model with every byte of the weights, for what takes much longer than
// reading them once. `progress` counts bytes, of stored_bytes() in all.
uint32_t model_checksum(const ModelFiles& files, const ProgressCallback& progress = {});

}  // namespace jackscrew
