# The small-batch kernels as sources of a target: one file per instruction set, each with its own flags; the CPU is asked
# at run time. Other compilers and processors get the portable files alone and run upstream's kernels.
set(small_batch_avx2 -mavx2 -mfma -mf16c -ffp-contract=off) # no contraction: every variant of a kernel must round in the same places
if(NOT MSVC AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(small_batch_x86 ON)
endif()

function(small_batch_add_kernels target)
    set(src ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/src)
    target_include_directories(${target} PRIVATE ${src})
    target_sources(${target} PRIVATE ${src}/small-batch-layout.cpp)
    if(NOT small_batch_x86)
        return()
    endif()

    target_sources(${target} PRIVATE ${src}/small-batch-avx2.cpp)
    target_compile_definitions(${target} PRIVATE SMALL_BATCH_X86)
    set_source_files_properties(${src}/small-batch-avx2.cpp TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${small_batch_avx2}")

    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag("-mavxvnni -mavx512vnni -mavx512vl" SMALL_BATCH_COMPILER_HAS_VNNI)
    if(SMALL_BATCH_COMPILER_HAS_VNNI)
        target_sources(${target} PRIVATE ${src}/small-batch-avx-vnni.cpp ${src}/small-batch-avx512-vnni.cpp)
        target_compile_definitions(${target} PRIVATE SMALL_BATCH_X86_VNNI)
        set_source_files_properties(${src}/small-batch-avx-vnni.cpp TARGET_DIRECTORY ${target}
            PROPERTIES COMPILE_OPTIONS "${small_batch_avx2};-mavxvnni")
        set_source_files_properties(${src}/small-batch-avx512-vnni.cpp TARGET_DIRECTORY ${target}
            PROPERTIES COMPILE_OPTIONS "${small_batch_avx2};-mavx512f;-mavx512bw;-mavx512vl;-mavx512vnni")
    endif()
endfunction()

# the kernels of the VNNI sets for the test program, with that instruction emulated
function(small_batch_add_emulated_kernel target)
    if(small_batch_x86)
        set(source ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/tests/small-batch-emulated-vnni.cpp)
        target_sources(${target} PRIVATE ${source})
        target_compile_definitions(${target} PRIVATE SMALL_BATCH_X86)
        set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${small_batch_avx2}")
    endif()
endfunction()
