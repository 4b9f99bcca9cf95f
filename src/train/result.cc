#include "train/result.h"

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "conversion/result_texts.h"
#include "formats/safetensors.h"
#include "session/adapter.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/output_dir.h"
#include "train/result_move.h"

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

}  // namespace

void write_result(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& output_dir, bool keeps_exports) {
  const fs::path whole = whole_result(output_dir);
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    export_adapter(
        [&](const StateVisitor& visitor) { source.visit(visitor); }, source.ops(), adapter,
        files.origin, whole,
        [&](const fs::path& to) { write_texts(tokenizer_texts(files, tokenizer, format), to); });
  } else {
    AtomicDirectory directory(whole);
    export_model(source, files, tokenizer, format, directory.path());
    directory.commit();
  }
  move_result(output_dir, keeps_exports);
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
