// Writing what a run must not lose where the system refuses to: a full disk, mostly.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "train/trainer.h"

namespace jackscrew {

// Runs `write`. Where the system refuses, Error(generic), warns that `what` is not written and that
// the run continues; returns whether it was written. Other errors are thrown on.
bool write_or_warn(const std::string& what, const std::function<void()>& write);

// Runs `write` until it succeeds. Where the system refuses, says so and calls `refused` the first
// time. Where the disk of `place` is full, tries again as soon as it has more room, at the latest
// after 30 s, until console.stop asks for the end. Throws the last Error(generic) then, and at once
// for any other reason or where there is no console.stop.
void write_patiently(const TrainConsole& console, const std::string& what, const fs::path& place,
                     const std::function<void()>& write, const std::function<void()>& refused);

// For the end of a run that cannot write a checkpoint to its output_dir, for the reason `why`:
// calls write_checkpoint(directory), which returns the checkpoint's path, with a new directory on
// another disk, as far as there is one. Throws Error(interrupted) that says where it is or, where
// that fails as well, an error of the kind of `why` with both reasons.
[[noreturn]] void write_elsewhere(
    ErrorKind kind, const Error& why,
    const std::function<fs::path(const fs::path& directory)>& write_checkpoint);

}  // namespace jackscrew
