// LoRA adapters as PEFT keeps them: peft_type LORA.
#pragma once

#include "formats/peft.h"

namespace jackscrew {

// Refuses whatever changes an adapter's arithmetic and is not computed here: biases,
// initialisations that change the base ...
extern const PeftType kPeftLora;

}  // namespace jackscrew
