// jackscrew logits: writes a text's ids and logits to a safetensors file, for comparison with other
// programs.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/directory.h"
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "conversion/compare.h"
#include "conversion/value_checks.h"
#include "data/encode_records.h"
#include "formats/tensor_io.h"
#include "session/adapter.h"
#include "session/fit.h"
#include "session/loading.h"

namespace jackscrew {

namespace {

// The ids of the first window of the first record.
std::vector<int32_t> first_window(const Recipe& recipe, const Tokenizer& tokenizer) {
  const DatasetOptions options = dataset_options(recipe, tokenizer);
  std::vector<int32_t> ids;
  for (const std::string& path : recipe.data) {
    if (!ids.empty()) break;
    find_records(DataPlace(path).files(DataPart::train), recipe.max_samples,
                 [&](const FoundRecord& found) {
                   require_memory_to_encode(found);
                   const Record record = found.parse(recipe.fields).record;
                   ids = encode_record(tokenizer, options.examples, record, found.place).ids;
                   return ids.empty();
                 });
  }
  if (ids.empty()) fail(ErrorKind::data, "{} has no token", fmt::join(recipe.data, ", "));
  ids.resize(std::min(ids.size(), static_cast<size_t>(options.sequence_len)));
  return ids;
}

// Throws Error(usage) where the output is among the files that are read, or would be: a name that
// is new in a model's directory may be one that is looked for there.
void check_output_is_not_read(const Recipe& recipe) {
  const fs::path output = fs::absolute(recipe.output);
  const auto refuse_if_read = [&](const fs::path& file) {
    if (!is_same_file(output, file)) return;
    throw Error(ErrorKind::usage,
                fmt::format("{} is what is read, and would be replaced", recipe.output),
                "give another output");
  };
  for (const fs::path source : {recipe.model, recipe.adapter, recipe.tokenizer}) {
    refuse_if_read(source);
    // It need not be a directory. Those of a download cache hold links to files elsewhere.
    for (const auto& entry : entries_if_directory(source)) refuse_if_read(entry.path());
    if (!is_same_file(output.parent_path(), source)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{} would be among the files of {}, which are read", recipe.output,
                            source.string()),
                "give an output in another directory");
  }
  for (const std::string& path : recipe.data) {
    for (const fs::path& file : DataPlace(path).files(DataPart::train)) refuse_if_read(file);
  }
}

// Throws Error(non_finite) for bytes of logits that are not finite.
void require_finite_logits(std::span<const uint8_t> bytes, const std::string& model) {
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  if (all_finite(Tensor(logits.data(), DType::f32, {std::ssize(logits)}))) return;
  throw Error(ErrorKind::non_finite, fmt::format("logits of {} are not finite", model),
              kNonFiniteModel);
}

int write_logits(const Recipe& given) {
  Recipe recipe = without_training(with_adapter_options(given));
  for (const char* option : {"model", "data", "output"}) recipe.options.require(option, "logits");
  check_output_is_not_read(recipe);
  check_output_file(recipe);
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  require_weights(recipe, files);
  settle_lengths(recipe, files);
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  std::vector<int32_t> ids = first_window(recipe, tokenizer);
  const auto tokens = static_cast<int64_t>(ids.size());
  const SessionUse use{.training = false,
                       .tokens = tokens,
                       .max_positions = tokens,
                       .kv_tokens = 0,
                       .logits_rows = tokens};
  const auto session = open_session(recipe, files, use, stderr_style(recipe.quiet));
  warn_of_product_parameters(*session);
  const Tensor logits = session->logits(ids, tokens, false);
  const Tensor id_view(ids.data(), DType::i32, {tokens});
  AtomicFile file(recipe.output);
  SafetensorsWriter writer(file.path(),
                           {tensor_spec("ids", id_view), tensor_spec("logits", logits)});
  const auto write = [&](const char* name, const Tensor& view) {
    write_tensor(session->ops(), view, [&](std::span<const uint8_t> bytes) {
      if (view.dtype() == DType::f32) require_finite_logits(bytes, recipe.model);
      writer.write(name, bytes);
    });
  };
  write("ids", id_view);
  write("logits", logits);
  writer.close();
  check_output_file(recipe);  // another process may just have finished there
  file.commit();
  return 0;
}

}  // namespace

int run_logits(Arguments arguments) {
  return with_recipe(arguments, 0, "logits", write_logits);
}

}  // namespace jackscrew
