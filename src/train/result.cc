#include "train/result.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/directory.h"
#include "conversion/model_output.h"
#include "conversion/result_texts.h"
#include "formats/safetensors.h"
#include "session/adapter.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/output_dir.h"
#include "train/run_exports.h"

namespace jackscrew {

namespace {

const char* dtype_of(std::span<const SafetensorsSpec> specs) {
  WeightTypes types;
  for (const SafetensorsSpec& spec : specs) {
    types.add(spec.dtype, spec.name.starts_with("model.layers.") && spec.shape.size() == 2);
  }
  return torch_dtype(types);
}

void export_model(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& to) {
  const std::vector<SafetensorsSpec> specs = source.weights();
  write_texts(config_texts(files, tokenizer, format, dtype_of(specs)), to);
  write_texts(tokenizer_texts(files, tokenizer, format), to);
  ShardedSafetensorsWriter writer(to, specs);
  for (const SafetensorsSpec& spec : specs) {
    source.write_weight(spec.name,
                        [&](std::span<const uint8_t> bytes) { writer.write(spec.name, bytes); });
  }
  writer.close();
}

// Removes files that an earlier result has and this one does not: they would be read as part of
// this one.
void remove_others(const fs::path& result, const fs::path& from) {
  std::error_code ignored;  // what cannot be looked at is no file of a result
  const auto remove_unless_new = [&](const fs::path& name) {
    if (!fs::exists(result / name, ignored)) remove_tree(from / name);
  };
  for (const fs::directory_entry& entry : entries_of(from)) {
    const fs::path name = entry.path().filename();
    if (is_result_file(name.string()) && entry.is_regular_file(ignored)) remove_unless_new(name);
  }
  for (const char* name : {kDefaultTemplateFile, kToolTemplateFile}) remove_unless_new(name);
}

// Moves the files of a finished directory into place, the weights last: whoever sees them sees a
// complete model.
void move_files(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator at(from, error), end; !error && at != end;) {
    if (at->is_regular_file(error)) paths.push_back(at->path().lexically_relative(from));
    if (!error) at.increment(error);
  }
  if (error) fail(ErrorKind::generic, "cannot list {}: {}", from.string(), error.message());
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.extension() == ".safetensors", a) <
           std::pair(b.extension() == ".safetensors", b);
  });
  for (const fs::path& path : paths) {
    if (path.has_parent_path()) fs::create_directory(to / path.parent_path(), error);
    fs::rename(from / path, to / path, error);
    if (error) {
      throw Error(
          ErrorKind::generic,
          fmt::format("cannot move {} to {}: {}; of the result, what is not there yet is in {}",
                      path.string(), to.string(), error.message(), from.string()),
          "move it there");
    }
  }
  sync_renamed(to, to);
  fs::remove_all(from, error);
}

}  // namespace

void write_result(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& output_dir, bool keeps_exports) {
  const fs::path beside = result_staging(output_dir);
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    export_adapter([&](const StateVisitor& visitor) { source.visit(visitor); }, source.ops(),
                   adapter, files.origin, beside);
    try {
      write_texts(tokenizer_texts(files, tokenizer, format), beside);
    } catch (const Error&) {
      // Another try would need room for a second one.
      std::error_code ignored;
      fs::remove_all(beside, ignored);
      throw;
    }
  } else {
    AtomicDirectory directory(beside);
    export_model(source, files, tokenizer, format, directory.path());
    directory.commit();
  }
  // First, so that where they cannot be removed the result that they are of stays whole.
  if (!keeps_exports) remove_exports(output_dir);
  remove_others(beside, output_dir);
  move_files(beside, output_dir);
}

FileSizes result_sizes(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                       const ChatFormat& format) {
  FileSizes sizes{bytes_of(tokenizer_texts(files, tokenizer, format)), 0};
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    const StateSource states = [&](const StateVisitor& visitor) { source.visit(visitor); };
    sizes.add(adapter_bytes(states, adapter, files.origin));
    return sizes;
  }
  const std::vector<SafetensorsSpec> specs = source.weights();
  sizes.add({bytes_of(config_texts(files, tokenizer, format, dtype_of(specs))), 0});
  sizes.add(ShardedSafetensorsWriter::sizes(specs));
  return sizes;
}

}  // namespace jackscrew
