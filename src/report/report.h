// report.html: what a run did, on one page that needs nothing else: no script, no font, no network.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/file.h"

namespace jackscrew {

// The page, from the events of a log (report/event_log.h) and the run's recipe. What the log does
// not have, the page has not: a run that goes on, or was broken off, has a page too.
std::string render_report(const std::string& title, const std::vector<nlohmann::json>& events,
                          const std::string& recipe_yaml);

// Writes the page of the run in a directory beside its log and returns its path. Throws
// Error(usage) when no run has been there.
fs::path write_report(const fs::path& output_dir);

}  // namespace jackscrew
