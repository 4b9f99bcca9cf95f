// What a session is for. With the recipe and the model's configuration, it determines every byte
// that the session takes.
#pragma once

#include "model/config.h"
#include "session/place.h"

namespace jackscrew {

struct SessionUse {
  bool training = false;
  int64_t tokens = 0;         // most tokens of a micro-batch
  int64_t max_positions = 0;  // most positions of a sequence
  // The last of these positions: of tokens that are added to a sequence one by one (model/rope.h).
  int64_t later_positions = 0;
  int64_t kv_tokens = 0;    // capacity of the KV cache; 0: none, or as answer_tokens() says
  int64_t logits_rows = 0;  // rows of logits asked for at once; 0: none
  Place place = {};
  bool compares = false;  // texts under two models, as they are stored
  // Host memory that the data are still to take beside the session.
  int64_t data_bytes = 0;
  // Host memory that files of output_dir are still to take, where they take any.
  int64_t file_bytes = 0;
  // For the hint of a session that does not train and does not fit: what would take less memory.
  const char* remedy = "take a smaller sequence_len";
};

// The most tokens of a prompt and its answer in a training session that is asked for logits. Its KV
// cache uses the memory of a step's activations: it gets as many tokens as fit there, but at least
// 128, and at most a sequence. `virtual_tokens` come before them.
int64_t answer_tokens(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens);
// Whether that least room is more than what a step that recomputes has as activations.
bool answers_take_memory(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens);

}  // namespace jackscrew
