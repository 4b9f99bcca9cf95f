// The rooms of docs/architecture.md: a file includes files of its own room and of rooms above it,
// and of no others. A test stands in the room of the same name.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cli/run_program.h"

namespace jackscrew {
namespace {

std::vector<std::string> lines_of(const fs::path& file) {
  std::istringstream text(read_text(file));
  std::vector<std::string> out;
  for (std::string line; std::getline(text, line);) out.push_back(line);
  return out;
}

// What follows `begin` in a line, up to `end`; nullopt where the line does not begin so.
std::optional<std::string> between(const std::string& line, std::string_view begin,
                                   std::string_view end) {
  if (!line.starts_with(begin)) return std::nullopt;
  const size_t last = line.find(end, begin.size());
  if (last == std::string::npos) return std::nullopt;
  return line.substr(begin.size(), last - begin.size());
}

// From the table of rooms: their names, the first one first.
std::vector<std::string> rooms() {
  std::vector<std::string> out;
  for (const std::string& line : lines_of(source_root() / "docs" / "architecture.md")) {
    const auto room = between(line, "| `", "/` |");
    if (room && room->find('/') == std::string::npos) out.push_back(*room);
  }
  return out;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kExtensions = {".h", ".cc", ".cu", ".cuh"};
  return kExtensions.contains(path.extension().string());
}

std::vector<fs::path> sources_below(const fs::path& directory) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (is_source(entry.path())) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// What a file includes in quotes, as it is written there.
std::vector<std::string> includes_of(const fs::path& file) {
  std::vector<std::string> out;
  for (const std::string& line : lines_of(file)) {
    if (const auto included = between(line, "#include \"", "\"")) out.push_back(*included);
  }
  return out;
}

std::string first_directory(const std::string& path) {
  return path.substr(0, path.find('/'));
}

class Rooms : public testing::Test {
 protected:
  Rooms() {
    for (const std::string& room : rooms()) order_.emplace(room, order_.size());
  }

  // Where `included` is of a room, it is of `room` or of one above it.
  void expect_above(const std::string& included, const std::string& room, const std::string& by) {
    const auto place = order_.find(first_directory(included));
    if (place == order_.end()) return;
    EXPECT_LE(place->second, order_.at(room)) << by << " includes " << included;
  }

  std::map<std::string, size_t> order_;
};

TEST_F(Rooms, AreThoseOfTheTable) {
  for (const auto& entry : fs::directory_iterator(source_root() / "src")) {
    EXPECT_TRUE(order_.contains(entry.path().filename().string()))
        << entry.path() << " has no row in the table of docs/architecture.md";
  }
  for (const auto& [room, place] : order_) {
    EXPECT_TRUE(fs::is_directory(source_root() / "src" / room)) << room;
  }
}

TEST_F(Rooms, IncludeOnlyThoseAbove) {
  size_t seen = 0;
  for (const auto& [room, place] : order_) {
    for (const fs::path& file : sources_below(source_root() / "src" / room)) {
      for (const std::string& included : includes_of(file)) {
        expect_above(included, room, file.string());
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 500u) << "the includes are not found";
}

// With what the tests share (tests/support, and headers of other rooms' tests).
TEST_F(Rooms, AreTestedByWhatIsInThemAndAbove) {
  for (const auto& [room, place] : order_) {
    const fs::path directory = source_root() / "tests" / room;
    if (!fs::exists(directory)) continue;
    for (const fs::path& file : sources_below(directory)) {
      std::vector<fs::path> open = {file};
      std::set<std::string> known;
      while (!open.empty()) {
        const fs::path from = open.back();
        open.pop_back();
        for (const std::string& included : includes_of(from)) {
          expect_above(included, room, file.string() + " by way of " + from.string());
          if (first_directory(included) == "tests" && known.insert(included).second) {
            open.push_back(source_root() / included);
          }
        }
      }
    }
  }
}

// Two types of one name make one of what templates do with either, at the linker's choice: a vector
// of the one then moves its elements as if they were of the other.
TEST(Files, NameATypeOnce) {
  std::map<std::string, fs::path> known;
  for (const fs::path& file : sources_below(source_root() / "src")) {
    std::string space;
    bool is_unnamed = false;
    for (const std::string& line : lines_of(file)) {
      if (const auto name = between(line, "namespace ", " {")) space = *name;
      is_unnamed = line == "namespace {" || (is_unnamed && line != "}  // namespace");
      for (const char* kind : {"struct ", "class ", "enum class "}) {
        if (is_unnamed || !line.starts_with(kind) || line.find('{') == std::string::npos) continue;
        const size_t begin = std::string_view(kind).size();
        // Not of a specialisation, nor of what is defined apart from its class.
        const std::string name = line.substr(begin, line.find_first_of(" {", begin) - begin);
        if (name.find('<') != std::string::npos || name.find("::") != std::string::npos) break;
        const auto [first, is_new] = known.emplace(space + "::" + name, file);
        EXPECT_TRUE(is_new) << name << " is in " << first->second << " and in " << file;
        break;
      }
    }
  }
  EXPECT_GT(known.size(), 300u) << "the types are not found";
}

// fmt/format.h has fmt::join() too, but not since fmt 11.
TEST(Files, IncludeWhatJoins) {
  size_t joining = 0;
  for (const char* directory : {"src", "tests", "bench"}) {
    for (const fs::path& file : sources_below(source_root() / directory)) {
      const std::string text = read_text(file);
      if (text.find("fmt::join(") == std::string::npos) continue;
      EXPECT_NE(text.find("#include <fmt/ranges.h>"), std::string::npos) << file;
      ++joining;
    }
  }
  EXPECT_GT(joining, 30u) << "fmt::join() is not found";
}

// Longer files have two subjects.
TEST(Files, HaveAtMost500Lines) {
  for (const fs::path& file : sources_below(source_root() / "src")) {
    EXPECT_LE(lines_of(file).size(), 500u) << file;
  }
}

}  // namespace
}  // namespace jackscrew
