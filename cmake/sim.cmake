# The sim device: translates metal/*.metal to C++ at build time and compiles them into _sim_kernels (fast) and
# _sim_kernels_checked (every memory access followed), which the device loads when it is first used.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|aarch64|arm64)$")
  set(lily_sim_default ON)
else()
  set(lily_sim_default OFF)
endif()
option(LILY_SIM "Build the sim device, which runs the Metal kernels on the CPU" ${lily_sim_default})
if(NOT LILY_SIM)
  return()
endif()

set(lily_core_dir ${PROJECT_SOURCE_DIR}/src/lily_core)
set(sim_dir ${lily_core_dir}/device/sim)
file(GLOB sim_device_sources CONFIGURE_DEPENDS ${sim_dir}/*.cpp)
target_sources(lily_engine PRIVATE ${lily_core_dir}/device/sim.cpp ${sim_device_sources})
target_compile_definitions(lily_engine PUBLIC LILY_HAS_SIM)
target_link_libraries(lily_engine PUBLIC ${CMAKE_DL_LIBS})

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(sim_architecture -march=x86-64-v3)
endif()
set(sim_kernel_flags -O2 -g1 -ffp-contract=off -fno-math-errno -fno-trapping-math -fstack-clash-protection
    -ftls-model=initial-exec
    -Wno-attributes ${sim_architecture})
# The instrumentation of two sanitizers, whose hooks the checker supplies itself.
set(sim_checked_flags -fsanitize=thread -fsanitize=alignment,bounds,shift,integer-divide-by-zero
    -fno-sanitize-recover=all -fno-optimize-sibling-calls -DLILY_CHECKED)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND sim_checked_flags -mllvm -tsan-instrument-func-entry-exit=0)
else()
  list(APPEND sim_checked_flags --param tsan-instrument-func-entry-exit=0)
endif()
set(msl_tool ${CMAKE_COMMAND} -E env PYTHONPATH=${PROJECT_SOURCE_DIR}/tools PYTHONDONTWRITEBYTECODE=1
    ${Python_EXECUTABLE} -m msl)
file(GLOB msl_tool_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/msl/*.py)
file(GLOB metal_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/metal/*.metal)
file(GLOB metal_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/metal/*.h)
list(FILTER metal_sources EXCLUDE REGEX "_tensor\\.metal$")  # tensor operations run on Apple GPUs only

set(sim_generated)
set(sim_stems)
set(sim_out ${CMAKE_CURRENT_BINARY_DIR}/sim)
file(MAKE_DIRECTORY ${sim_out}/fast ${sim_out}/checked)
foreach(source ${metal_sources})
  get_filename_component(stem ${source} NAME_WE)
  list(APPEND sim_stems ${stem})
  foreach(flavour fast checked)
    set(define)
    if(flavour STREQUAL "checked")
      set(define -D LILY_CHECKED=1)
    else()
      set(define -D LILY_DEVICE_TILE=1)
    endif()
    add_custom_command(
      OUTPUT ${sim_out}/${flavour}/${stem}.cpp
      COMMAND ${msl_tool} translate ${source} -o ${sim_out}/${flavour}/${stem}.cpp
              --reflection ${sim_out}/${flavour}/${stem}.json --compiler ${CMAKE_CXX_COMPILER}
              -I ${PROJECT_SOURCE_DIR}/metal ${define}
      DEPENDS ${source} ${metal_headers} ${msl_tool_sources}
      COMMENT "Translating ${stem}.metal (${flavour})" VERBATIM)
    list(APPEND sim_generated_${flavour} ${sim_out}/${flavour}/${stem}.cpp)
  endforeach()
endforeach()
add_custom_command(OUTPUT ${sim_out}/registry.cpp COMMAND ${msl_tool} registry ${sim_stems} -o ${sim_out}/registry.cpp
                   DEPENDS ${msl_tool_sources} VERBATIM)

file(GLOB sim_runtime CONFIGURE_DEPENDS ${sim_dir}/runtime/*.cpp)
list(FILTER sim_runtime EXCLUDE REGEX "/(unchecked|checker|shadow|access_hooks|line_table|behaviour_hooks)\\.cpp$")
set(sim_only_fast ${sim_dir}/runtime/unchecked.cpp)
set(sim_only_checked ${sim_dir}/runtime/checker.cpp ${sim_dir}/runtime/shadow.cpp ${sim_dir}/runtime/access_hooks.cpp
    ${sim_dir}/runtime/line_table.cpp ${sim_dir}/runtime/behaviour_hooks.cpp)

function(lily_add_sim_library target flavour)
  add_library(${target} MODULE ${sim_runtime} ${sim_only_${flavour}} ${sim_out}/registry.cpp
              ${sim_generated_${flavour}})
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so")
  target_include_directories(${target} PRIVATE ${lily_core_dir} ${sim_dir} ${sim_dir}/msl)
  target_link_libraries(${target} PRIVATE Threads::Threads)
  target_compile_options(${target} PRIVATE -O2 -ftls-model=initial-exec ${sim_architecture})
  set_source_files_properties(${sim_generated_${flavour}} PROPERTIES COMPILE_OPTIONS "${ARGN}")
  set_source_files_properties(${sim_runtime} ${sim_only_${flavour}} PROPERTIES COMPILE_OPTIONS "-Wall;-Wextra;-Wshadow")
  install(TARGETS ${target} LIBRARY DESTINATION lily)
endfunction()

lily_add_sim_library(_sim_kernels fast "${sim_kernel_flags}")
lily_add_sim_library(_sim_kernels_checked checked "${sim_kernel_flags};${sim_checked_flags}")
add_custom_command(
  TARGET _sim_kernels_checked POST_BUILD
  COMMAND ${msl_tool} lines $<TARGET_FILE:_sim_kernels_checked>
          -o $<TARGET_FILE_DIR:_sim_kernels_checked>/_sim_kernels_checked.lines
  COMMENT "Listing the lines of checked accesses" VERBATIM)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_sim_kernels_checked.lines DESTINATION lily)
