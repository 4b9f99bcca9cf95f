#include "train/export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/directory.h"
#include "conversion/model_output.h"
#include "conversion/result_texts.h"
#include "formats/gguf_mixtures.h"
#include "formats/safetensors.h"
#include "quant/format.h"
#include "quant/row_encoders.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/output_dir.h"

namespace jackscrew {

namespace {

const char* dtype_of(std::span<const SafetensorsSpec> specs) {
  std::set<std::string_view> dtypes;
  for (const SafetensorsSpec& spec : specs) dtypes.insert(spec.dtype);
  return torch_dtype(dtypes);
}

void export_model(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& to) {
  const std::vector<SafetensorsSpec> specs = source.weights();
  write_texts(config_texts(files, tokenizer, format, dtype_of(specs)), to);
  ShardedSafetensorsWriter writer(to, specs);
  for (const SafetensorsSpec& spec : specs) {
    source.write_weight(spec.name,
                        [&](std::span<const uint8_t> bytes) { writer.write(spec.name, bytes); });
  }
  writer.close();
}

bool is_storage(std::string_view name) {
  const auto named = [&](const Format* format) { return format->name() == name; };
  return std::ranges::any_of(all_formats(), named) || find_gguf_mixture(name) != nullptr ||
         std::ranges::any_of(row_encoders(), named, &RowEncoder::format);
}

// Whether it is the name of a model that runs export: model.gguf, model-q8_0.gguf, model-nf4.
bool is_export(const fs::path& path) {
  const fs::path name = path.extension() == ".gguf" ? path.stem() : path.filename();
  constexpr std::string_view kPrefix = "model-";
  const std::string text = name.string();
  return text == "model" ||
         (text.starts_with(kPrefix) && is_storage(std::string_view(text).substr(kPrefix.size())));
}

// Removes the models that an earlier run has exported, and what it left half-written.
void remove_exports(const fs::path& exports) {
  for (const fs::directory_entry& entry : entries_of(exports)) {
    const fs::path& path = entry.path();
    if (is_export(path)) remove_model(path);
    if (path.extension() == kTemporarySuffix && is_export(path.stem())) remove_tree(path);
  }
  std::error_code not_empty;
  fs::remove(exports, not_empty);
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
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (entry.is_regular_file()) paths.push_back(fs::relative(entry.path(), from));
  }
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.extension() == ".safetensors", a) <
           std::pair(b.extension() == ".safetensors", b);
  });
  std::error_code error;
  for (const fs::path& path : paths) {
    fs::create_directories((to / path).parent_path(), error);
    fs::rename(from / path, to / path, error);
    if (error) {
      throw Error(
          ErrorKind::generic,
          fmt::format("cannot move {} to {}: {}; of the result, what is not there yet is in {}",
                      path.string(), to.string(), error.message(), from.string()),
          "move it there");
    }
  }
  sync_directory(to);
  fs::remove_all(from, error);
}

}  // namespace

void export_result(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                   const ChatFormat& format, const fs::path& output_dir) {
  const fs::path beside = result_staging(output_dir);
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    export_adapter([&](const StateVisitor& visitor) { source.visit(visitor); }, source.ops(),
                   adapter, files.origin, beside);
  } else {
    AtomicDirectory directory(beside);
    export_model(source, files, tokenizer, format, directory.path());
    directory.commit();
  }
  write_texts(tokenizer_texts(files, tokenizer, format), beside);
  // First, so that where they cannot be removed the result that they are of stays whole.
  remove_exports(exports_directory(output_dir));
  remove_others(beside, output_dir);
  move_files(beside, output_dir);
}

int64_t result_bytes(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                     const ChatFormat& format) {
  const int64_t texts = bytes_of(tokenizer_texts(files, tokenizer, format));
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    const StateSource states = [&](const StateVisitor& visitor) { source.visit(visitor); };
    return checked_add(texts, adapter_bytes(states, adapter, files.origin));
  }
  const std::vector<SafetensorsSpec> specs = source.weights();
  const int64_t configs = bytes_of(config_texts(files, tokenizer, format, dtype_of(specs)));
  return checked_add(checked_add(texts, configs), ShardedSafetensorsWriter::bytes(specs));
}

}  // namespace jackscrew
