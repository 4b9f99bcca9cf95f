// The storage formats int8 and int8_row: signed bytes with an f32 scale per block of a row, or per
// row. Layout: codes s8 [rows, cols], then scales f32 [rows, blocks of a row].
#pragma once

#include <memory>

#include "quant/format.h"

namespace jackscrew {

const Format& int8_format();      // blocks of 128
const Format& int8_row_format();  // a row is a block

// Blocks of another size; 0: a row is a block.
std::unique_ptr<Format> make_int8_format(const char* name, int64_t block);

}  // namespace jackscrew
