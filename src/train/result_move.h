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

// Call once the log has the run's `end`: the result's place is removed, which was left, empty, to
// tell that the log may lack it.
void end_move(const fs::path& output_dir);

// Does what a process left to do that ended between move_result() and end_move(), and warns of it
// where files are left to move.
// The log, if it is that of such a run, then has its `end`. Throws as move_result(), and where the
// log cannot be written, before anything is moved.
void complete_move(const fs::path& output_dir);

}  // namespace jackscrew
