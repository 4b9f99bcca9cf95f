// Writes the result of a run: a Hugging Face model directory, or a PEFT adapter directory.
#pragma once

#include "base/file.h"
#include "text/chat/chat_format.h"
#include "train/result_source.h"

namespace jackscrew {

// Writes the model, or the adapter if the learner made one, to the top of the run's directory, with
// the chat template of `format` where it differs from the tokenizer's. All of it is written before
// anything of an earlier result is touched, and then moved (train/result_move.h), which removes
// exports in that directory unless `keeps_exports`: of the same result. Weights in f32, bf16 and
// f16 keep their type, others become f32.
void write_result(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& output_dir, bool keeps_exports);

// What the files take that write_result() writes; the largest is of those of weights, with what
// little describes an adapter. `source` may be on the plan device.
FileSizes result_sizes(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                       const ChatFormat& format);

}  // namespace jackscrew
