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
  // Creates an event file in `directory`, which must exist, and removes those of earlier runs. With
  // `resumed_step`, continues the newest file there, cut after that step, and makes TensorBoard
  // forget later points. Throws Error(generic) when the file cannot be written.
  explicit TensorBoardWriter(const fs::path& directory,
                             std::optional<int64_t> resumed_step = std::nullopt);

  // Adds a point to the curve `tag`, such as "train/loss", with the present wall time, and passes
  // it to the system. If that fails, warns once (GrowingFile).
  void scalar(std::string_view tag, int64_t step, float value);

  // Writes the file anew in `directory` if it was removed or replaced meanwhile (GrowingFile).
  void put_back(const fs::path& directory) { file_.put_back(directory); }

  const fs::path& path() const { return file_.path(); }

 private:
  void write_record(std::string_view payload);

  GrowingFile file_;
};

}  // namespace jackscrew
