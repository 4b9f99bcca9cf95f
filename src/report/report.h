// report.html: what a run did, on one page.
#pragma once

#include "base/file.h"

namespace jackscrew {

inline constexpr const char* kReportName = "report.html";

// Writes the page for the run in a directory from its log (report/event_log.h) and its recipe,
// beside them, and returns its path. Parts that the log lacks are omitted: a run that is not
// finished, or was aborted, has a page too. Throws Error(usage) when the directory holds no run.
fs::path write_report(const fs::path& output_dir);

}  // namespace jackscrew
