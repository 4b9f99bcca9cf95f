// Writes what a run must not lose when the system refuses to write, mostly because of a full disk.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "train/output_dir.h"
#include "train/train_console.h"

namespace jackscrew {

// Runs `write`. If it throws Error(generic), warns that `what` is not written. Returns whether it
// was written; other errors propagate.
bool write_or_warn(const std::string& what, const std::function<void()>& write);

// The same for what nothing else depends on: whatever `write` throws is no more than a warning.
void write_if_possible(const std::string& what, const std::function<void()>& write);

// A file of this name in output_dir requests a checkpoint after the present step.
inline constexpr const char* kSaveTrigger = "checkpoint.save";
// Whether one was requested since the last call: by a signal, or by that file, which is removed.
bool take_save_request(const TrainConsole& console, OutputClaim& output_dir);

// Removes the checkpoints that the one just `written` takes the place of, once the disk confirms
// it: those after the step `own`, the last that the run had before, are of a branch that it has
// left; of the others prune_checkpoints() keeps some. Warns where it cannot.
void remove_replaced(const fs::path& output_dir, int64_t own, const fs::path& written, int64_t keep,
                     const fs::path& spared);

// Removes those after the step `own` alone, at the end of a run that may have written none. Warns
// where it cannot; where the directory cannot be reached, the result will say so.
void remove_abandoned(OutputClaim& output_dir, int64_t own);

// Whether the states of a run can and shall be saved after such an error: not where they are not
// finite, the device or another rank has failed, or the user wants no more.
bool may_save_after(const Error& error);

// Runs `write` until it succeeds; at once again where it fails and output_dir was moved meanwhile.
// The first time that it fails else, warns and calls `refused`. If the disk of output_dir is full,
// tries again as soon as there is more room, at the latest after 30 s, until console.stop asks for
// the end; where the phase is writes_result, it is waits_for_room meanwhile. Throws what the last
// try did then, as an Error, and at once for any other reason or where there is no console.stop.
// Of what !may_save_after() it neither warns nor calls `refused`.
void write_patiently(const TrainConsole& console, const std::string& what, OutputClaim& output_dir,
                     const std::function<void()>& write, const std::function<void()>& refused);

// The directories for a checkpoint that output_dir does not take, the best first: large temporary
// directories, which may be on another disk.
std::vector<fs::path> places_elsewhere();

// For the end of a run that cannot write a checkpoint to its output_dir because of `why`: calls
// write_checkpoint(directory), which returns the checkpoint's path, with a new directory in the
// first of `places` that takes it. Throws an error of `kind` naming the place or, where none does,
// one of the kind of `why` with that reason and the last.
[[noreturn]] void write_elsewhere(
    ErrorKind kind, const Error& why,
    const std::function<fs::path(const fs::path& directory)>& write_checkpoint,
    const std::vector<fs::path>& places = places_elsewhere());

}  // namespace jackscrew
