# The recipes of recipes/ become a part of the program, for `jackscrew config init`.
function(jackscrew_add_recipes target)
  file(GLOB recipes CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/recipes/*.yaml)
  set(rows "")
  foreach(recipe IN LISTS recipes)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${recipe})
    get_filename_component(name ${recipe} NAME_WE)
    file(READ ${recipe} text)
    string(APPEND rows "    {\"${name}\", R\"__recipe(${text})__recipe\"},\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/recipes.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"cli/recipes.h\"

namespace jackscrew {

std::span<const RecipeText> recipe_texts() {
  static constexpr RecipeText kRecipes[] = {
@rows@  };
  return kRecipes;
}

}  // namespace jackscrew
" @ONLY)
  target_sources(${target} PRIVATE ${source})
endfunction()
