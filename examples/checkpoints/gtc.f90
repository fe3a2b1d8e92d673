! gtc.f90: a proxy of GTC, the gyrokinetic toroidal code: many 2D arrays of particles and 3D arrays of fields, of which some are touched for
! the last time early in the cycle of computing. proxy.h says what it is told and what it prints.
module proxy
  use, intrinsic :: iso_c_binding
  use phx, only: phx_properties
  implicit none
  interface
    subroutine proxy_begin(name) bind(c)
      import
      character(kind=c_char), intent(in) :: name(*)
    end subroutine
    real(c_double) function proxy_parameter(key) bind(c)
      import
      character(kind=c_char), intent(in) :: key(*)
    end function
    integer(c_size_t) function proxy_bytes() bind(c)
      import
    end function
    type(phx_properties) function proxy_properties() bind(c)
      import
    end function
    subroutine proxy_must(code) bind(c)
      import
      integer(c_int), value :: code
    end subroutine
    integer(c_int) function proxy_calibrates() bind(c)
      import
    end function
    subroutine proxy_calibrated() bind(c)
    end subroutine
    integer(c_int) function proxy_cycles() bind(c)
      import
    end function
    integer(c_int) function proxy_keeps() bind(c)
      import
    end function
    subroutine proxy_work(share) bind(c)
      import
      real(c_double), value :: share
    end subroutine
    subroutine proxy_computed() bind(c)
    end subroutine
    subroutine proxy_committed(cycle) bind(c)
      import
      integer(c_int), value :: cycle
    end subroutine
    integer(c_int64_t) function proxy_checksum(sum, bytes, count) bind(c)
      import
      integer(c_int64_t), value :: sum
      type(c_ptr), value :: bytes
      integer(c_size_t), value :: count
    end function
    subroutine proxy_end(restored, checksum) bind(c)
      import
      integer(c_int), value :: restored
      integer(c_int64_t), value :: checksum
    end subroutine
  end interface
end module

program gtc
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: real64
  use phx
  use proxy
  implicit none
  type particles
    real(real64), pointer :: of(:, :) ! place and velocity, by particle
  end type
  type field
    real(real64), pointer :: at(:, :, :) ! radius, angle, plane
  end type
  integer, parameter :: nr = 64, na = 32
  type(particles), allocatable :: zion(:)
  type(field), allocatable :: phi(:)
  integer(c_int), target :: done = 0
  integer :: arrays_2d, arrays_3d, early, early_slots, slots, restored, i
  integer(c_size_t) :: bytes
  integer(c_int) :: code
  integer(c_int64_t) :: checksum
  character(8) :: key

  call proxy_begin('gtc' // c_null_char)
  arrays_2d = parameter('arrays_2d')
  arrays_3d = parameter('arrays_3d')
  early = parameter('early_arrays')
  early_slots = parameter('early_slots')
  slots = parameter('slots')
  allocate (zion(arrays_2d), phi(arrays_3d))
  bytes = proxy_bytes() / (arrays_2d + arrays_3d)
  do i = 1, arrays_2d
    write (key, '(a, i0)') 'zion', i
    call proxy_must(phx_create_obj(trim(key), zion(i)%of, [6, int(bytes / 48) + 1], proxy_properties()))
  end do
  do i = 1, arrays_3d
    write (key, '(a, i0)') 'phi', i
    call proxy_must(phx_create_obj(trim(key), phi(i)%at, [nr, na, int(bytes / (8 * nr * na)) + 1], proxy_properties()))
  end do
  call proxy_must(phx_register_obj('cycle', done))

  call begin
  if (proxy_calibrates() /= 0) then
    call cycle
    call proxy_calibrated
    call begin
  end if
  code = phx_restart()
  if (code /= phx_enotfound) call proxy_must(code)
  restored = done
  do while (done < proxy_cycles())
    call cycle
    done = done + 1
    call proxy_computed
    if (proxy_keeps() /= 0) call proxy_must(phx_checkpoint_commit())
    call proxy_committed(done)
  end do
  checksum = 0
  do i = 1, arrays_2d
    checksum = proxy_checksum(checksum, c_loc(zion(i)%of), size(zion(i)%of, kind=c_size_t) * 8)
  end do
  do i = 1, arrays_3d
    checksum = proxy_checksum(checksum, c_loc(phi(i)%at), size(phi(i)%at, kind=c_size_t) * 8)
  end do
  call proxy_end(restored, checksum)

contains

  integer function parameter(key)
    character(*), intent(in) :: key
    parameter = nint(proxy_parameter(key // c_null_char))
  end function

  subroutine begin
    integer :: i, j, k, l
    do i = 1, arrays_2d
      do j = 1, size(zion(i)%of, 2)
        zion(i)%of(:, j) = [(0.01_real64 * modulo(7 * j + l * i, 101), l = 1, 6)]
      end do
    end do
    do i = 1, arrays_3d
      do k = 1, size(phi(i)%at, 3)
        do j = 1, na
          phi(i)%at(:, j, k) = [(0.01_real64 * modulo(l + 3 * j + 5 * k + i, 103), l = 1, nr)]
        end do
      end do
    end do
  end subroutine

  ! The arrays in turn, those of particles first: the first ones early only.
  subroutine cycle
    integer :: slot, i
    do slot = 1, slots
      call proxy_work(real(slot, real64) / slots)
      if (slot <= early_slots) then
        do i = slot, early, early_slots
          call update(i)
        end do
      end if
      if (modulo(4 * slot, slots) == 0) then
        do i = early + 1, arrays_2d + arrays_3d
          call update(i)
        end do
      end if
    end do
  end subroutine

  subroutine update(i)
    integer, intent(in) :: i
    if (i <= arrays_2d) then
      call push(zion(i)%of, phi(arrays_3d)%at)
    else
      call smooth(phi(i - arrays_2d)%at)
    end if
  end subroutine

  ! Particles swing in a well, and feel the field of their cell.
  subroutine push(z, around)
    real(real64), intent(inout) :: z(:, :)
    real(real64), intent(in) :: around(:, :, :)
    real(real64), parameter :: dt = 0.01_real64
    integer :: i, r, a
    do i = 1, size(z, 2)
      r = 1 + modulo(int(z(1, i) * 10), nr)
      a = 1 + modulo(int(z(2, i) * 10), na)
      z(4:6, i) = z(4:6, i) - dt * (z(1:3, i) + 0.01_real64 * around(r, a, 1))
      z(1:3, i) = z(1:3, i) + dt * z(4:6, i)
    end do
  end subroutine

  ! A field is averaged over a gyration.
  subroutine smooth(f)
    real(real64), intent(inout) :: f(:, :, :)
    real(real64) :: old(0:nr + 1)
    integer :: j, k
    do k = 1, size(f, 3)
      do j = 1, na
        old(1:nr) = f(:, j, k)
        old(0) = old(nr)
        old(nr + 1) = old(1)
        f(:, j, k) = 0.5_real64 * old(1:nr) + 0.25_real64 * (old(0:nr - 1) + old(2:nr + 1)) + 1e-6_real64 * j
      end do
    end do
  end subroutine
end program
