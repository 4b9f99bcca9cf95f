#include "conversion/quantise_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/directory.h"
#include "base/error.h"
#include "base/json_object.h"
#include "base/map_guard.h"
#include "conversion/model_output.h"
#include "formats/json_text.h"
#include "formats/tensor_io.h"
#include "report/progress.h"

namespace jackscrew {

namespace {

constexpr int64_t kFormat = 3;
constexpr const char* kProgress = "progress.json";
constexpr const char* kStream = "stream";

std::string part_name(const char* what, int64_t part) {
  return fmt::format("{}-{:05}.safetensors", what, part);
}

// Whether it has the name of a file that is made here, finished or temporary.
bool is_own(const std::string& name) {
  const bool is_part = name.starts_with("block-") || name.starts_with("stream-");
  return name == kProgress || name == std::string(kProgress) + kTemporarySuffix ||
         (is_part && name.ends_with(".safetensors"));
}

// A setting whose value is a checksum of what was read, which tells nobody anything.
struct Content {
  std::string_view name;
  const char* changed;
  std::vector<std::string> cut_by;  // settings that change it, too
};

const Content* find_content(std::string_view name) {
  static const Content kContents[] = {
      {"adapter", "adapter is another", {}},
      {"data", "data comes to other tokens", {"calibration_sequences", "sequence_len"}},
      {"model", "model is another", {}}};
  const auto* found = std::ranges::find(kContents, name, &Content::name);
  return found == std::end(kContents) ? nullptr : found;
}

// The settings whose values differ: "bits was 3 and is 4 now".
std::string changes(const QuantisationSettings& then, const QuantisationSettings& now) {
  const auto value_of = [](const QuantisationSettings& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string("not set") : found->second;
  };
  const auto differs = [&](const std::string& name) {
    return value_of(then, name) != value_of(now, name);
  };
  QuantisationSettings all = then;
  all.insert(now.begin(), now.end());
  std::vector<std::string> out;
  for (const auto& entry : all) {
    const std::string& name = entry.first;
    if (!differs(name)) continue;
    if (const Content* content = find_content(name)) {
      if (std::ranges::any_of(content->cut_by, differs)) continue;
      const bool both = then.contains(name) && now.contains(name);
      out.push_back(both                 ? content->changed
                    : now.contains(name) ? name + " was not set and is now"
                                         : name + " was set and is not now");
    } else {
      out.push_back(
          fmt::format("{} was {} and is {} now", name, value_of(then, name), value_of(now, name)));
    }
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

int64_t count(const JsonFields& fields, const char* key) {
  const int64_t value = fields.integer(key);
  if (value < 0) fail(ErrorKind::model, "{}: {} is {}", fields.where(), key, value);
  return value;
}

}  // namespace

bool refuses_model(const std::exception& exception) {
  const ErrorKind kind = error_of(exception).kind();
  return kind == ErrorKind::non_finite || (kind == ErrorKind::model && !is_unreadable(exception));
}

QuantisationCheckpoint::QuantisationCheckpoint(const fs::path& output,
                                               QuantisationSettings settings, bool replace)
    : directory_(output.string() + kUnfinishedSuffix), settings_(std::move(settings)) {
  // Its holder may remove it between our open and our lock, but not again and again.
  constexpr int kTries = 10;
  for (int tries = 0; tries < kTries && !is_in_place(); ++tries) {
    make_directories(directory_);
    lock_ = DirectoryLock(directory_);
  }
  require_in_place();
  if (is_there(directory_ / kProgress)) open(replace);
  remove_strangers();
}

QuantisationCheckpoint::~QuantisationCheckpoint() {
  if (empty()) remove();
}

void QuantisationCheckpoint::open(bool replace) {
  std::string what, to_continue;
  try {
    const std::string text = read_text(directory_ / kProgress);
    const nlohmann::json object = parse_json(text, kProgress);
    const JsonFields fields(object, kProgress);
    if (fields.integer(kChecksumMember) != crc32c(without_checksum(text))) {
      fail(ErrorKind::model, "{} is corrupt: checksum mismatch", kProgress);
    }
    const int64_t format = fields.integer("format");
    const std::string other =
        fmt::format("{} is of format {}, this program reads {}", kProgress, format, kFormat);
    if (format < kFormat) fail(ErrorKind::model, "{}", other);
    if (format > kFormat) {
      what = "what a newer version has finished: " + other;
      to_continue = "use that version to continue";
    } else {
      QuantisationSettings then;
      for (const auto& [name, value] : object.at("settings").items()) then[name] = value;
      if (then == settings_) return load(object);
      what = "what is finished of another quantisation: " + changes(then, settings_);
      to_continue = "repeat those settings to continue";
    }
  } catch (const Unreadable& error) {  // what is finished may be whole
    throw Error(error.kind(), fmt::format("{}: {}", directory_.string(), error.what()),
                error.hint());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    return start_over(error.what());
  } catch (const nlohmann::json::exception& error) {
    return start_over(fmt::format("{}: {}", kProgress, json_complaint(error.what())));
  }
  what = fmt::format("{} holds {}", directory_.string(), what);
  if (replace) return start_over(what);
  throw Error(ErrorKind::usage, what,
              to_continue + "; overwrite=true starts over, or give another output");
}

// Checks everything before anything is used.
void QuantisationCheckpoint::load(const nlohmann::json& object) {
  const JsonFields fields(object, kProgress);
  QuantisationProgress progress{
      count(fields, "measured"), count(fields, "rounded"), {}, {}, fields.texts("notes")};
  progress.costs = object.at("costs").get<decltype(progress.costs)>();
  progress.errors = object.at("errors").get<decltype(progress.errors)>();
  const auto checked = [&](const nlohmann::json& member) {
    const JsonFields entry(member, kProgress);
    File file{entry.text("name"), count(entry, "bytes"), narrow<uint32_t>(count(entry, "crc32c"))};
    check(file);
    return file;
  };
  std::vector<File> files;
  for (const nlohmann::json& member : object.at("files")) files.push_back(checked(member));
  const nlohmann::json* member = fields.find("stream");
  stream_ = member != nullptr ? std::optional(checked(*member)) : std::nullopt;
  files_ = std::move(files);
  progress_ = std::move(progress);
}

void QuantisationCheckpoint::require_in_place() const {
  if (is_in_place()) return;
  throw Error(ErrorKind::generic,
              fmt::format("{} was moved or removed while it was written", directory_.string()),
              "run the same command again");
}

bool QuantisationCheckpoint::is_whole(const File& file, const MappedFile& map) {
  const auto bytes = map.bytes();
  return read_whole(
      map, [&] { return std::ssize(bytes) == file.bytes && crc32c(bytes) == file.crc32c; });
}

void QuantisationCheckpoint::check(const File& file) const {
  if (is_whole(file, MappedFile(directory_ / file.name))) return;
  fail(ErrorKind::model, "{} is corrupt: checksum mismatch", file.name);
}

SafetensorsFile QuantisationCheckpoint::open_whole(const File& file) const {
  SafetensorsFile opened(directory_ / file.name);
  if (is_whole(file, opened.map())) return opened;
  fail(ErrorKind::model, "{} is corrupt: checksum mismatch", opened.path().string());
}

void QuantisationCheckpoint::start_over(const std::string& why) {
  warn(fmt::format("{}: {}; starting over", directory_.string(), why));
  fs::remove(directory_ / kProgress);
}

// Removes files that progress.json does not list: left behind by a process that was stopped before
// it could write that.
void QuantisationCheckpoint::remove_strangers() const {
  std::vector<fs::path> strangers;
  std::error_code ignored;
  for (const fs::directory_entry& entry : entries_of(directory_, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool known = !empty() && (name == kProgress || (stream_ && name == stream_->name) ||
                                    std::ranges::find(files_, name, &File::name) != files_.end());
    if (is_own(name) && !known) strangers.push_back(entry.path());
  }
  for (const fs::path& path : strangers) fs::remove(path, ignored);
}

bool QuantisationCheckpoint::continues_after(const std::exception& exception) const {
  const bool is_taken = dynamic_cast<const PlaceTaken*>(&exception) != nullptr;
  const bool is_usage = error_of(exception).kind() == ErrorKind::usage && !is_taken;
  const bool ends_so_again = is_usage || refuses_model(exception);
  return !empty() && is_in_place() && is_own_error(exception) && !ends_so_again;
}

int64_t QuantisationCheckpoint::bytes() const {
  int64_t sum = stream_ ? stream_->bytes : 0;
  for (const File& file : files_) sum = checked_add(sum, file.bytes);
  return sum;
}

std::string QuantisationCheckpoint::text(const QuantisationProgress& progress) const {
  const auto entry = [](const File& file) -> nlohmann::json {
    return {{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.crc32c}};
  };
  nlohmann::json files = nlohmann::json::array();
  for (const File& file : files_) files.push_back(entry(file));
  const auto json = [](const nlohmann::json& value) { return dump_json(value, -1); };
  JsonObject object;
  object.add("format", kFormat).add_json("settings", json(settings_));
  object.add("measured", progress.measured).add("rounded", progress.rounded);
  object.add_json("costs", json(progress.costs)).add_json("errors", json(progress.errors));
  object.add("notes", progress.notes);
  object.add_json("files", json(files));
  if (stream_) object.add_json("stream", json(entry(*stream_)));
  return with_checksum(object) + "\n";
}

QuantisationCheckpoint::OpenFile::OpenFile(const fs::path& path,
                                           const std::vector<SafetensorsSpec>& specs)
    : written{path.filename().string(), safetensors_bytes(specs), 0}, writer(path, specs, &crc) {}

QuantisationCheckpoint::File QuantisationCheckpoint::finish(OpenFile& file) {
  file.writer.close();
  file.written.crc32c = file.crc.value();
  return file.written;
}

void QuantisationCheckpoint::begin_part(const std::vector<SafetensorsSpec>& specs) {
  part_.reset();
  if (specs.empty()) return;
  require_in_place();
  part_ = std::make_unique<OpenFile>(directory_ / part_name("block", progress_.rounded), specs);
}

void QuantisationCheckpoint::add(const std::vector<TensorBytes>& tensors) {
  for (const TensorBytes& tensor : tensors) part_->writer.write(tensor.spec.name, tensor.bytes);
}

void QuantisationCheckpoint::keep(Ops& ops, QuantisationProgress progress, const Tensor* stream) {
  require_in_place();
  const auto before = stream_;
  if (part_) files_.push_back(finish(*part_));
  part_.reset();
  stream_.reset();
  if (stream != nullptr) {
    const std::string name = part_name(kStream, progress.measured + progress.rounded);
    OpenFile file(directory_ / name, {tensor_spec(kStream, *stream)});
    write_tensor(ops, *stream,
                 [&](std::span<const uint8_t> bytes) { file.writer.write(kStream, bytes); });
    stream_ = finish(file);
  }
  write_text_atomic(directory_ / kProgress, text(progress));
  progress_ = std::move(progress);
  std::error_code ignored;
  if (before) fs::remove(directory_ / before->name, ignored);
}

void QuantisationCheckpoint::read_stream(Ops& ops, const Tensor& stream) const {
  require_in_place();
  const SafetensorsFile file = open_whole(stream_.value());
  const SafetensorsEntry* entry = file.find(kStream);
  const SafetensorsSpec spec = tensor_spec(kStream, stream);
  if (entry == nullptr || entry->dtype != spec.dtype || entry->shape != spec.shape) {
    fail(ErrorKind::model, "{} has another stream than this text's", file.path().string());
  }
  read_tensor(ops, entry->bytes, stream);
  check_map(entry->bytes.data());
}

std::vector<TensorBytes> QuantisationCheckpoint::read(int64_t part,
                                                      const std::vector<SafetensorsSpec>& specs) {
  require_in_place();
  const fs::path path = directory_ / part_name("block", part);
  if (!read_file_ || read_file_->path() != path) {
    const std::string name = path.filename();
    const auto kept = std::ranges::find(files_, name, &File::name);
    if (kept == files_.end()) {
      fail(ErrorKind::model, "{} has no {}", directory_.string(), name);
    }
    read_file_ = open_whole(*kept);
  }
  const SafetensorsFile& file = *read_file_;
  std::vector<TensorBytes> out;
  for (const SafetensorsSpec& spec : specs) {
    const SafetensorsEntry* entry = file.find(spec.name);
    if (entry == nullptr || entry->dtype != spec.dtype || entry->shape != spec.shape) {
      fail(ErrorKind::model, "{} has no {} of this model", file.path().string(), spec.name);
    }
    out.push_back({spec, {entry->bytes.begin(), entry->bytes.end()}});
  }
  check_map(file.entries().front().bytes.data());
  return out;
}

void QuantisationCheckpoint::must_hold(ErrorKind refusal, const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.kind() == refusal) remove();
    throw;
  }
}

void QuantisationCheckpoint::remove() {
  progress_ = {};
  files_.clear();
  stream_.reset();
  read_file_.reset();
  if (!is_in_place()) return;
  remove_strangers();
  std::error_code ignored;
  fs::remove(directory_, ignored);
}

}  // namespace jackscrew
