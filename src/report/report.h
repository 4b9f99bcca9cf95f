// report.html: what a run did, on one page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/file.h"

namespace jackscrew {

// Renders the page from the events of a log (report/event_log.h) and the run's recipe. Parts that
// the log lacks are omitted: a run that is not finished, or was aborted, has a page too.
std::string render_report(const std::string& title, const std::vector<nlohmann::json>& events,
                          const std::string& recipe_yaml);

inline constexpr const char* kReportName = "report.html";

// Writes the page for the run in a directory, beside its log, and returns its path. Throws
// Error(usage) when the directory holds no run.
fs::path write_report(const fs::path& output_dir);

}  // namespace jackscrew
