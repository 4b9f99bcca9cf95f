// Lists as one text, as options have them on the command line.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew {

// "a,b" or "[a, b]" -> items, without the spaces around them. In an item "\," is a comma, and so is
// one in braces, as in the "{1,2}" of a pattern. All items in brackets may have quotes: ["a"].
std::vector<std::string> list_items(std::string_view text);
// The text of these items, and of one.
std::string list_text(std::span<const std::string> items);
std::string list_item(std::string_view item);

// A hint where items are the parts of one path that is there and has a comma in its name; empty
// where they are not.
std::string hint_of_comma(std::span<const std::string> items);

}  // namespace jackscrew
