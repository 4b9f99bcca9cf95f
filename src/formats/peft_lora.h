// LoRA adapters as PEFT keeps them: peft_type LORA.
#pragma once

#include "formats/peft.h"

namespace jackscrew {

// What changes an adapter's arithmetic and is not computed here is refused: biases, ranks per
// module, DoRA, initialisations that change the base ...
extern const PeftType kPeftLora;

}  // namespace jackscrew
