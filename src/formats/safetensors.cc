#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "base/directory.h"
#include "base/error.h"
#include "base/map_guard.h"
#include "base/shell_word.h"
#include "formats/json_text.h"
#include "formats/peft.h"
#include "formats/quantised_layout.h"
#include "formats/shape.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

using nlohmann::json;

constexpr size_t kPrefixBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct KnownDType {
  const char* name;
  int64_t bytes;
  std::optional<DType> type = {};  // of a tensor
};
constexpr std::array<KnownDType, 16> kDTypes = {{{"F64", 8, DType::f64},
                                                 {"F32", 4, DType::f32},
                                                 {"F16", 2, DType::f16},
                                                 {"BF16", 2, DType::bf16},
                                                 {"I64", 8, DType::i64},
                                                 {"I32", 4, DType::i32},
                                                 {"I16", 2},
                                                 {"I8", 1, DType::i8},
                                                 {"U64", 8},
                                                 {"U32", 4},
                                                 {"U16", 2},
                                                 {"U8", 1, DType::u8},
                                                 {"BOOL", 1},
                                                 {"F8_E4M3", 1},
                                                 {"F8_E5M2", 1},
                                                 {"C64", 8}}};

// Null for an unknown one.
const KnownDType* find_dtype(std::string_view name) {
  for (const KnownDType& known : kDTypes) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

// Formats whose elements are those of tensors.
struct ElementFormat {
  const Format& (*format)();
  DType type;
};
constexpr ElementFormat kElementFormats[] = {
    {f32_format, DType::f32}, {bf16_format, DType::bf16}, {f16_format, DType::f16}};

// The text of the file's header.
std::string_view header_text(const MappedFile& file) {
  const std::span<const uint8_t> bytes = file.bytes();
  const std::string path = file.path().string();
  if (bytes.size() < kPrefixBytes) {
    fail(ErrorKind::model, "{} has {} bytes, too few for a safetensors file", path, bytes.size());
  }
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), kPrefixBytes);
  if (size > kMaxHeaderBytes) {
    fail(ErrorKind::model, "{}: header of {} bytes, more than the {} that the format allows", path,
         size, kMaxHeaderBytes);
  }
  if (size > bytes.size() - kPrefixBytes) {
    fail(ErrorKind::model, "{}: header of {} bytes in a file of {}", path, size, bytes.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kPrefixBytes,
                              static_cast<size_t>(size));
  if (text.empty() || text.front() != '{') {
    fail(ErrorKind::model, "{}: header is not a JSON object", path);
  }
  return text;
}

SafetensorsMetadata parse_metadata(const json& value, const std::string& where) {
  if (!value.is_object()) {
    fail(ErrorKind::model, "{}: {} is not an object", where, kSafetensorsMetadata);
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail(ErrorKind::model, "{}: {} \"{}\" is not a string", where, kSafetensorsMetadata, key);
    }
  }
  return value.get<SafetensorsMetadata>();
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, const std::string& path,
                             std::span<const uint8_t> data) {
  const std::string where = fmt::format("{}: tensor {}", path, name);
  const JsonFields fields(value, where);
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = fields.text("dtype");
  const json* shape = fields.find("shape");
  const json* offsets = fields.find("data_offsets");
  if (shape == nullptr || !shape->is_array() || offsets == nullptr || !offsets->is_array()) {
    fail(ErrorKind::model, "{}: shape and data_offsets must be lists", where);
  }
  entry.shape = fields.integers("shape");
  const std::vector<int64_t> range = fields.integers("data_offsets");
  const auto size = static_cast<int64_t>(data.size());
  if (range.size() != 2 || range[0] < 0 || range[0] > range[1] || range[1] > size) {
    fail(ErrorKind::model, "{}: data_offsets {} outside the file's {} bytes of data", where,
         shape_text(range), size);
  }
  // Newer dtypes take other numbers of bytes, some less than one an element; whoever needs such a
  // tensor refuses it.
  const int64_t element = safetensors_dtype_size(entry.dtype);
  const bool is_known = element != 0;
  std::vector<int64_t> extents = entry.shape;
  if (is_known) extents.push_back(element);
  const std::optional<int64_t> bytes = shape_elements(extents);
  if (!bytes || (is_known && *bytes != range[1] - range[0])) {
    fail(ErrorKind::model, "{}: {} {} does not take {} bytes", where, entry.dtype,
         shape_text(entry.shape), range[1] - range[0]);
  }
  entry.bytes =
      data.subspan(static_cast<size_t>(range[0]), static_cast<size_t>(range[1] - range[0]));
  return entry;
}

// Throws unless the tensors, in the order of their bytes, cover the data exactly.
void check_coverage(const std::vector<SafetensorsEntry>& entries, std::span<const uint8_t> data,
                    const std::string& path) {
  const uint8_t* expected = data.data();
  for (const SafetensorsEntry& entry : entries) {
    if (entry.bytes.data() != expected) {
      fail(ErrorKind::model, "{}: tensor {} {} the one before it", path, entry.name,
           entry.bytes.data() < expected ? "overlaps" : "leaves a hole after");
    }
    expected += entry.bytes.size();
  }
  if (expected != data.data() + data.size()) {
    fail(ErrorKind::model, "{}: {} bytes after the last tensor", path,
         data.data() + data.size() - expected);
  }
}

// The files of a directory that end in .safetensors, by name.
std::vector<fs::path> safetensors_in(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const auto& entry : entries_if_directory(directory)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Whether a file may lie beside the shards of a model, whoever has made them: the same weights as
// Mistral publishes them, or an adapter.
bool is_beside_shards(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("consolidated") || name == kPeftWeightsFile;
}

// Whether an index is of other files than those that are here: ExLlamaV2 copies that of the model
// which it rounds, and calls its own files output*.safetensors.
bool is_of_another_model(const json& weight_map, const std::vector<fs::path>& paths) {
  const auto is_shard = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    return name.starts_with("model-") ||
           std::find(weight_map.begin(), weight_map.end(), name) != weight_map.end();
  };
  return std::ranges::none_of(paths, is_shard) && !std::ranges::all_of(paths, is_beside_shards);
}

}  // namespace

int64_t safetensors_dtype_size(std::string_view dtype) {
  const KnownDType* known = find_dtype(dtype);
  return known == nullptr ? 0 : known->bytes;
}

const char* safetensors_dtype(DType type) {
  for (const KnownDType& known : kDTypes) {
    if (known.type == type) return known.name;
  }
  fail(ErrorKind::generic, "a tensor of {}, which safetensors has not", dtype_name(type));
}

std::optional<DType> dtype_named(std::string_view dtype) {
  const KnownDType* known = find_dtype(dtype);
  return known == nullptr ? std::nullopt : known->type;
}

const char* safetensors_dtype(const Format& format) {
  for (const ElementFormat& known : kElementFormats) {
    if (&format == &known.format()) return safetensors_dtype(known.type);
  }
  return nullptr;
}

const Format* format_of_dtype(std::string_view dtype) {
  const std::optional<DType> type = dtype_named(dtype);
  for (const ElementFormat& known : kElementFormats) {
    if (type == known.type) return &known.format();
  }
  return nullptr;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  const std::string where = path.string();
  std::string_view text;
  const json header = read_whole(file_, [&] {
    text = header_text(file_);
    return parse_json(text, where);
  });
  const std::span<const uint8_t> data = file_.bytes().subspan(kPrefixBytes + text.size());
  for (const auto& [name, value] : header.items()) {
    if (name == kSafetensorsMetadata) {
      metadata_ = parse_metadata(value, where);
    } else {
      entries_.push_back(parse_entry(name, value, where, data));
    }
  }
  // An empty tensor lies before the one that begins at the same place.
  std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  check_coverage(entries_, data, where);
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

bool SafetensorsFile::holds(std::span<const uint8_t> bytes) const {
  const std::span<const uint8_t> all = file_.bytes();
  const std::less_equal<const uint8_t*> not_after;
  return not_after(all.data(), bytes.data()) &&
         not_after(bytes.data() + bytes.size(), all.data() + all.size());
}

void SafetensorsFile::release(std::span<const uint8_t> bytes) const {
  if (!holds(bytes)) fail(ErrorKind::generic, "release of bytes outside {}", path().string());
  file_.release(static_cast<size_t>(bytes.data() - file_.bytes().data()), bytes.size());
}

SafetensorsSource::SafetensorsSource(const fs::path& directory) {
  const fs::path single = directory / "model.safetensors";
  const fs::path index = directory / "model.safetensors.index.json";
  if (is_there(single, ErrorKind::model)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const SafetensorsEntry& entry : files_.back()->entries()) add(*files_.back(), entry);
  } else if (is_there(index, ErrorKind::model)) {
    open_index(directory, index);
  } else {
    open_all(directory);
  }
  if (files_.empty()) {
    if (is_there(directory / "pytorch_model.bin") ||
        is_there(directory / "pytorch_model.bin.index.json")) {
      throw Error(ErrorKind::model,
                  fmt::format("{} has its weights in pytorch_model.bin, which can run code when it "
                              "is read",
                              directory.string()),
                  "transformers converts it: AutoModelForCausalLM.from_pretrained(DIR)"
                  ".save_pretrained(NEW)");
    }
    throw Error(
        ErrorKind::model,
        fmt::format("{} has neither model.safetensors nor model.safetensors.index.json",
                    directory.string()),
        fmt::format("give a Hugging Face model directory with safetensors weights, or train "
                    "from scratch: model={} init=random",
                    shell_word((directory / "config.json").string())));
  }
  join_quantised(directory);
}

void SafetensorsSource::open_index(const fs::path& directory, const fs::path& index) {
  const std::string where = index.string();
  const json root = parse_json(read_text(index, kMaxHeaderBytes), where);
  const json* map = JsonFields(root, where).find("weight_map");
  if (map == nullptr || !map->is_object()) {
    fail(ErrorKind::model, "{}: weight_map is missing or not an object", where);
  }
  if (is_of_another_model(*map, safetensors_in(directory))) return open_all(directory);
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, value] : map->items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : std::string();
    // A shard lies beside its index: a name with a directory in it could point anywhere.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      fail(ErrorKind::model, "{}: tensor {} does not name a shard file", where, name);
    }
    const SafetensorsFile*& file = opened[shard];
    if (file == nullptr) {
      if (!is_there(directory / shard, ErrorKind::model)) {
        throw Error(ErrorKind::model, fmt::format("{}: shard {} is missing", where, shard),
                    "download the model again, or the missing file alone");
      }
      files_.push_back(std::make_unique<SafetensorsFile>(directory / shard));
      file = files_.back().get();
    }
    const SafetensorsEntry* entry = file->find(name);
    if (entry == nullptr) {
      fail(ErrorKind::model, "{}: tensor {} is not in shard {}", where, name, shard);
    }
    add(*file, *entry);
  }
}

void SafetensorsSource::open_all(const fs::path& directory) {
  for (const fs::path& path : safetensors_in(directory)) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const SafetensorsEntry& entry : files_.back()->entries()) {
      if (const auto same = slots_.find(entry.name); same != slots_.end()) {
        fail(ErrorKind::model, "{} and {} both have tensor {}", same->second.file->path().string(),
             path.string(), entry.name);
      }
      add(*files_.back(), entry);
    }
  }
}

void SafetensorsSource::add(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  Slot slot;
  slot.tensor.name = entry.name;
  if (const Format* format = format_of_dtype(entry.dtype)) slot.tensor.format = unowned(*format);
  slot.tensor.shape = entry.shape;
  slot.tensor.bytes = entry.bytes;
  slot.file = &file;
  slot.entry = &entry;
  if (slot.tensor.format == nullptr) {
    slot.problem = Error(ErrorKind::model,
                         fmt::format("tensor {} is of dtype {}, which weights cannot be read from",
                                     entry.name, entry.dtype),
                         "supported: F32, BF16, F16, " + quantised_layouts_text());
  }
  slots_[entry.name] = std::move(slot);
}

// Joins the tensors of each quantised weight into one. Errors are kept until the weight is asked
// for, so that a model that cannot be computed can still be inspected.
void SafetensorsSource::join_quantised(const fs::path& directory) {
  const QuantizationConfig config = read_quantization_config(directory);
  const auto find = [&](const std::string& name) -> const SafetensorsEntry* {
    const auto found = slots_.find(name);
    return found == slots_.end() ? nullptr : found->second.entry;
  };
  for (const QuantisedLayout& layout : quantised_layouts()) {
    const bool is_of_another = !config.method.empty() && config.method != layout.method;
    if (!layout.needs_no_config && is_of_another) continue;
    std::vector<std::string> layers;
    for (const auto& [name, slot] : slots_) {
      if (const auto layer = marked_layer(layout, name)) layers.push_back(*layer);
    }
    for (const std::string& layer : layers) {
      const LayerTensors tensors(layer, find);
      Slot joined;
      joined.file = slots_.find(tensors.name(layout.marker))->second.file;
      try {
        check_configured(layout, config, tensors.name(layout.marker));
        joined.tensor = layout.read(tensors, config);
      } catch (const Error& error) {
        joined.problem = error;
      }
      for (const std::string_view part : layout.parts) slots_.erase(tensors.name(part));
      joined.tensor.name = tensors.name(layout.weight);
      if (!joined.problem && slots_.contains(joined.tensor.name)) {
        joined.problem = Error(ErrorKind::model,
                               fmt::format("there are both {} and {}: which of them is meant, "
                                           "nothing says",
                                           joined.tensor.name, tensors.name(layout.marker)),
                               "remove the tensors of the one that is not");
      }
      if (layout.rounds_tied_head && joined.tensor.name == "lm_head.weight") has_own_head_ = true;
      slots_[joined.tensor.name] = std::move(joined);
    }
  }
}

void SafetensorsSource::take_head_as_embedding() {
  constexpr const char* kEmbedding = "model.embed_tokens.weight";
  const auto head = slots_.find("lm_head.weight");
  // A head of several tensors is in codes, which no embedding here is.
  if (head == slots_.end() || head->second.entry == nullptr || slots_.contains(kEmbedding)) return;
  auto slot = slots_.extract(head);
  slot.key() = kEmbedding;
  slot.mapped().tensor.name = kEmbedding;
  slots_.insert(std::move(slot));
}

const StoredTensor* SafetensorsSource::find(std::string_view name) const {
  const auto found = slots_.find(name);
  if (found == slots_.end()) return nullptr;
  const Slot& slot = found->second;
  if (slot.problem) {
    const std::string path = slot.file->path().string();
    throw Error(slot.problem->kind(), fmt::format("{}: {}", path, slot.problem->what()),
                slot.problem->hint());
  }
  return &slot.tensor;
}

std::vector<std::string> SafetensorsSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, slot] : slots_) out.push_back(name);
  return out;
}

void SafetensorsSource::release(const StoredTensor& tensor) const {
  const auto release_part = [&](std::span<const uint8_t> bytes) {
    for (const auto& file : files_) {
      if (!file->holds(bytes)) continue;
      file->release(bytes);
      return true;
    }
    return false;
  };
  if (!release_part(tensor.bytes)) {
    fail(ErrorKind::generic, "release of tensor {}, which is of another source", tensor.name);
  }
  for (const auto part : tensor.extra_parts) release_part(part);
}

}  // namespace jackscrew
