// How a result that is written gets to the top of its output_dir, where an earlier one may be.
//
// config.json or adapter_config.json, without which nothing loads what is there, makes way first
// and comes last: at no moment do files of two results pass for one. Where the process ends in
// between, the next run that claims the directory does the rest: the result is complete already.
#pragma once

#include "base/file.h"

namespace jackscrew {

// Moves the result that has been written to whole_result(output_dir) to the top, and removes what
// else of an earlier result is there, its exports included unless `keeps_exports`. Throws
// Error(generic) where the system refuses; complete_move() goes on from there.
void move_result(const fs::path& output_dir, bool keeps_exports);

// Does what a process left to do that ended within move_result(), or before its log could tell of
// the end of the run, and warns of it. The log, if there is one, then has the run's `end`. Throws
// as move_result().
void complete_move(const fs::path& output_dir);

}  // namespace jackscrew
