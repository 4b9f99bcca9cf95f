// TensorBoard event files: TFRecord frames around the few protobuf messages that scalars need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "report/growing_file.h"

namespace jackscrew {

class TensorBoardWriter {
 public:
  // Creates an event file in `directory`, which exists, in place of those of earlier runs. With
  // `resumed_step` goes on in the newest there, cut behind that step, and TensorBoard forgets what
  // it has seen beyond it. Throws Error(generic) when the file cannot be written.
  explicit TensorBoardWriter(const fs::path& directory,
                             std::optional<int64_t> resumed_step = std::nullopt);

  // Adds a point to the curve `tag`, such as "train/loss", and hands it to the system. The wall
  // time is now. Where the system refuses, warns once (GrowingFile).
  void scalar(std::string_view tag, int64_t step, float value);

  const fs::path& path() const { return path_; }

 private:
  void write_record(std::string_view payload);

  fs::path path_;
  GrowingFile file_;
};

}  // namespace jackscrew
