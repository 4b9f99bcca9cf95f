// Soft prompts as PEFT keeps them: peft_type PROMPT_TUNING, one tensor.
#pragma once

#include "formats/peft.h"

namespace jackscrew {

extern const PeftType kPeftPrompt;

}  // namespace jackscrew
