// TensorBoard event files: TFRecord frames around the few protobuf messages that scalars need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace jackscrew {

class TensorBoardWriter {
 public:
  // Creates a new event file in `directory`, which exists. With `resumed_step` TensorBoard forgets
  // what earlier files of the directory hold beyond that step. Throws Error(generic) when the file
  // cannot be written.
  explicit TensorBoardWriter(const fs::path& directory,
                             std::optional<int64_t> resumed_step = std::nullopt);

  // Adds a point to the curve `tag`, such as "train/loss", and hands it to the system. The wall
  // time is now.
  void scalar(std::string_view tag, int64_t step, float value);

  const fs::path& path() const { return path_; }

 private:
  void write_record(std::string_view payload);

  fs::path path_;
  FileWriter writer_;
};

}  // namespace jackscrew
