#include "formats/checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json_object.h"
#include "base/text.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"
#include "formats/tensor_io.h"

namespace jackscrew {

namespace {

constexpr int64_t kFormat = 1;
constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kState = "state.safetensors";
constexpr const char* kInfo = "checkpoint.json";

// The number in "checkpoint-<step>".
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return parse_int(std::string_view(name).substr(std::string_view(kPrefix).size()));
}

[[noreturn]] void damaged(const fs::path& checkpoint, const std::string& why) {
  throw Error(ErrorKind::model, fmt::format("{}: {}", checkpoint.string(), why),
              "remove this checkpoint, or choose another with resume=PATH");
}

}  // namespace

fs::path write_checkpoint(const fs::path& output_dir, const CheckpointInfo& info,
                          const std::string& recipe_yaml, const StateSource& states, Ops& ops) {
  const fs::path path = output_dir / (kPrefix + std::to_string(info.step));
  AtomicDirectory directory(path);
  std::vector<SafetensorsSpec> specs;
  states([&](const StateRef& state) {
    if (state.save) specs.push_back(tensor_spec(state.name, state.view));
  });
  const fs::path state_path = directory.path() / kState;
  Crc32c crc;
  SafetensorsWriter writer(state_path, std::move(specs), {{"format", "pt"}}, &crc);
  states([&](const StateRef& state) {
    if (state.save) {
      write_tensor(ops, state.view,
                   [&](std::span<const uint8_t> bytes) { writer.write(state.name, bytes); });
    }
  });
  writer.close();
  write_text_atomic(directory.path() / "recipe.yaml", recipe_yaml);
  JsonObject json;
  json.add("format", kFormat).add("step", info.step).add("version", info.version);
  json.add("isa", info.isa).add("product", info.product);
  json.add("state_bytes", fs::file_size(state_path)).add("state_crc32c", crc.value());
  write_text_atomic(directory.path() / kInfo, json.text() + "\n");
  directory.commit();
  return path;
}

std::vector<fs::path> list_checkpoints(const fs::path& output_dir) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir, error)) {
    const auto step = step_of(entry.path());
    if (step && fs::exists(entry.path() / kInfo)) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

CheckpointInfo read_checkpoint_info(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kInfo;
  if (!fs::exists(path)) {
    throw Error(ErrorKind::model, fmt::format("{} is not a checkpoint", checkpoint.string()),
                fmt::format("give a directory {}<step> that holds {}", kPrefix, kInfo));
  }
  const nlohmann::json object = parse_json(read_text(path), path.string());
  const JsonFields json(object, path.string());
  if (json.integer("format") != kFormat) {
    damaged(checkpoint, fmt::format("checkpoint format {}, this program reads {}",
                                    json.integer("format"), kFormat));
  }
  return {json.integer("step"), json.text("version"), json.text("isa"), json.text("product")};
}

void restore_checkpoint(const fs::path& checkpoint, const StateSource& states, Ops& ops) {
  const fs::path info_path = checkpoint / kInfo;
  const nlohmann::json object = parse_json(read_text(info_path), info_path.string());
  const JsonFields info(object, info_path.string());
  {
    const MappedFile raw(checkpoint / kState);
    if (static_cast<int64_t>(raw.bytes().size()) != info.integer("state_bytes") ||
        static_cast<int64_t>(crc32c(raw.bytes())) != info.integer("state_crc32c")) {
      damaged(checkpoint, "state.safetensors is not what was saved");
    }
  }
  const SafetensorsFile file(checkpoint / kState);
  size_t expected = 0;
  states([&](const StateRef& state) {
    if (!state.save) return;
    ++expected;
    const SafetensorsEntry* entry = file.find(state.name);
    const SafetensorsSpec spec = tensor_spec(state.name, state.view);
    if (entry == nullptr || entry->dtype != spec.dtype || entry->shape != spec.shape) {
      damaged(checkpoint,
              fmt::format("{} is missing or of another shape: the recipe has changed", state.name));
    }
  });
  if (expected != file.entries().size()) {
    damaged(checkpoint, "it holds states that this recipe does not have");
  }
  states([&](const StateRef& state) {
    if (!state.save) return;
    const SafetensorsEntry* entry = file.find(state.name);
    read_tensor(ops, entry->bytes, state.view);
    file.release(entry->bytes);
  });
}

void remove_checkpoints_after(const fs::path& output_dir, int64_t step) {
  for (const fs::path& path : list_checkpoints(output_dir)) {
    std::error_code ignored;
    if (step_of(path).value_or(0) > step) fs::remove_all(path, ignored);
  }
}

void remove_unfinished_checkpoints(const fs::path& output_dir) {
  std::vector<fs::path> unfinished;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(output_dir, ignored)) {
    const fs::path extension = entry.path().extension();
    const bool beside = extension == ".part" || extension == ".old";
    if (beside && step_of(entry.path().stem())) unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

void prune_checkpoints(const fs::path& output_dir, int64_t keep) {
  std::vector<fs::path> paths = list_checkpoints(output_dir);
  if (keep <= 0) return;
  const auto excess = static_cast<int64_t>(paths.size()) - keep;
  for (int64_t i = 0; i < excess; ++i) {
    std::error_code ignored;  // one that cannot be removed is only a waste of space
    fs::remove_all(paths[static_cast<size_t>(i)], ignored);
  }
}

}  // namespace jackscrew
