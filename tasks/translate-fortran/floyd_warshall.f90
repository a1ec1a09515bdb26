! Length of the shortest path from every node of a directed graph to every node (Floyd-Warshall). A path has an edge at
! least: from a node to itself it is the shortest cycle. weight(j, i) belongs to the edge from i to j; 1000000000 stands
! for "no edge" and for "no path".
subroutine floyd_warshall(nodes, weight, distance) bind(c)
    use iso_c_binding, only: c_int
    implicit none
    integer(c_int), value :: nodes
    integer(c_int), intent(in) :: weight(nodes, nodes)
    integer(c_int), intent(out) :: distance(nodes, nodes)
    integer(c_int), parameter :: none = 1000000000
    integer :: i, k

    distance = weight
    do k = 1, nodes
        do i = 1, nodes
            if (distance(k, i) == none) cycle
            where (distance(:, k) /= none) distance(:, i) = min(distance(:, i), distance(k, i) + distance(:, k))
        end do
    end do
end subroutine floyd_warshall
