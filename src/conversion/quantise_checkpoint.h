// The finished part of a quantisation, kept beside its output until that is written: a command that
// was interrupted, for whatever reason, continues after the last whole block.
//
//   OUTPUT.unfinished/
//     progress.json           the settings; what was measured and how far rounded matrices are off;
//                             of each file below its size and CRC-32C; at last its own CRC-32C
//     block-<n>.safetensors   the tensors that a block's matrices have become; the number behind
//                             the last block's is the head's
//     stream-<n>.safetensors  the residual stream of the calibration text before the next block
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "kernels/ops.h"

namespace jackscrew {

// All that determines the bytes of the result, keyed by the names of options or of what stands for
// them.
using QuantisationSettings = std::map<std::string, std::string>;

struct QuantisationProgress {
  int64_t measured = 0;  // blocks
  int64_t rounded = 0;   // blocks, and the head behind them
  // By matrix name: what Rounder::measure() returned, and QuantisedMatrix::error.
  std::map<std::string, std::vector<double>> costs;
  std::map<std::string, double> errors;
  std::vector<std::string> notes;  // QuantisationReport's
};

// Whether the command has ended so because the model is refused: it would be again.
bool refuses_model(const std::exception& exception);

class QuantisationCheckpoint {
 public:
  // Opens the checkpoint beside `output`, or begins one. A damaged one, or an older version's, is
  // discarded with a warning; so is one of other settings, or a newer version's, if `replace` is
  // set, else it throws Error(usage). Throws
  // Error(generic) where another process holds it, and Error(model) or Error(generic) where the
  // system refuses to read it: then it stays as it is.
  QuantisationCheckpoint(const fs::path& output, QuantisationSettings settings, bool replace);
  // Removes the checkpoint if it is empty.
  ~QuantisationCheckpoint();
  QuantisationCheckpoint(const QuantisationCheckpoint&) = delete;
  QuantisationCheckpoint& operator=(const QuantisationCheckpoint&) = delete;

  const fs::path& directory() const { return directory_; }
  const QuantisationProgress& progress() const { return progress_; }
  bool empty() const { return progress_.measured == 0 && progress_.rounded == 0; }
  // Whether the directory is where it was opened. Where somebody has moved or removed it, the same
  // command will not continue from it.
  bool is_in_place() const { return lock_.is_at(directory_); }
  // Whether the command that has ended so continues from it when it is run again: not where it
  // would end so again, or would find a file here damaged and start over. `exception` is the one
  // that was caught: a copy of it as Error says less.
  bool continues_after(const std::exception& exception) const;
  // The bytes of all files.
  int64_t bytes() const;

  // Begins the file of the next part, to which the tensors of its quantised matrices are added in
  // the order of `specs`; a part without any has none. These three throw Error(generic) where the
  // disk refuses. All but add() throw it where the directory is not in place.
  void begin_part(const std::vector<SafetensorsSpec>& specs);
  void add(const std::vector<TensorBytes>& tensors);
  // Saves the finished part, all of it or nothing: `progress` counts it, and `stream`, f32 [tokens,
  // hidden], is what the next part reads (null: nothing).
  void keep(Ops& ops, QuantisationProgress progress, const Tensor* stream);
  // Fills `stream` with the stream of the last keep().
  void read_stream(Ops& ops, const Tensor& stream) const;
  // The tensors of one matrix of part `part`. Throws Error(model) where they do not match `specs`,
  // or the part's file is not what keep() wrote.
  std::vector<TensorBytes> read(int64_t part, const std::vector<SafetensorsSpec>& specs);

  // Calls check(), which looks at what was written of it. If that throws an Error of the kind
  // `refusal`, nothing is kept of what is refused; any other error is none of what was written.
  void must_hold(ErrorKind refusal, const std::function<void()>& check);
  // Removes the files, once the result is written. Does nothing where the directory is not in
  // place: files at its path are another's.
  void remove();

 private:
  struct File {
    std::string name;
    int64_t bytes = 0;
    uint32_t crc32c = 0;
  };
  // A file that is being written.
  struct OpenFile {
    OpenFile(const fs::path& path, const std::vector<SafetensorsSpec>& specs);

    File written;  // but for its checksum
    Crc32c crc;
    SafetensorsWriter writer;
  };
  void open(bool replace);
  void load(const nlohmann::json& object);
  void require_in_place() const;
  // Whether it holds what was written as `file`.
  static bool is_whole(const File& file, const MappedFile& map);
  void check(const File& file) const;
  // Opens it and checks it.
  SafetensorsFile open_whole(const File& file) const;
  void start_over(const std::string& why);
  void remove_strangers() const;
  std::string text(const QuantisationProgress& progress) const;
  // Syncs it to the disk.
  static File finish(OpenFile& file);

  fs::path directory_;
  QuantisationSettings settings_;
  DirectoryLock lock_;
  QuantisationProgress progress_;
  std::vector<File> files_;  // of rounded parts
  std::optional<File> stream_;
  std::unique_ptr<OpenFile> part_;  // the part that has begun
  // Of the part that is read: its matrices are asked for one by one, and checked once.
  std::optional<SafetensorsFile> read_file_;
};

}  // namespace jackscrew
